"""A Debian host on an SD card, as a virtual machine without KVM: booted in seconds, its power cut at will.

    with Machine("bookworm") as machine:
        machine.start_guard('[minds.ada]\\ncommand = ["/bin/true"]\\nuser = "root"')
        row = machine.send("@ada")
        machine.power_cut()
        machine.boot()
        machine.systemctl("start", "hostguard")

/card is an ext4 file system on the partition /dev/mmcblk0p1, hostguard's state folder is on it; /src is the checkout.
All else that the guest writes is gone after a cut. Everything takes ten times as long as outside.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from qemu import BOOT_S, TRIES, Qemu

ROOT = Path(__file__).parents[2]
SOURCE_MIB = 64  # as in qemu.py
LONG_S = 120.0  # nothing takes this long, but on a machine that is very busy

# QEMU 7.2 does not save the card controller's PCI registers: the device is found anew, and only then its driver loaded.
WAKE = """set -e
mount -o ro /dev/vdb /src
cp -r /src/units/* /etc/systemd/system/
for device in /sys/bus/pci/devices/*; do
    read -r class <$device/class; [ $class != 0x080501 ] || echo 1 >$device/remove
done
echo 1 >/sys/bus/pci/rescan
modprobe sdhci_pci; modprobe mmc_block
systemctl daemon-reload
"""
MOUNT = """set -e
for i in {1..300}; do [ -b /dev/mmcblk0p1 ] && break; sleep 0.1; done
mount /dev/mmcblk0p1 /card
mkdir -p -m 700 /card/state /var/lib/hostguard
mount --bind /card/state /var/lib/hostguard
"""


class Failed(AssertionError):
    """A command in the guest failed."""


class Job:
    """A command that runs in the guest."""

    def __init__(self, machine: Machine, number: int) -> None:
        self._machine, self._number = machine, number

    def wait(self, seconds: float = LONG_S, *, check: bool = True) -> str:
        """What it printed. Raises Failed, TimeoutError."""
        answer = self._machine.qemu.answer(self._number, seconds)
        if check and answer["code"]:
            raise Failed(f"exit status {answer['code']}: {answer['out']}")
        out: str = answer["out"]
        return out


class Machine:
    """A virtual machine, booted; its card keeps what is on it over `power_cut` and `boot`.

    `image` is a folder that `image` made, `source` a disk that `make_source` made, `append` one of qemu.STATES.
    """

    def __init__(self, image: Path, source: Path, append: str = "") -> None:
        self._image, self._source, self._append = image, source, append
        self._folder = tempfile.TemporaryDirectory(prefix="hostguard-vm-")
        self._run = Path(self._folder.name)
        self._card = self._run / "card.raw"
        self._lock = os.open(image, os.O_RDONLY | os.O_DIRECTORY)
        self._power = ExitStack()

    def __enter__(self) -> Machine:
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # keeps `image` from removing it
        try:
            self.new_card()
            self.boot()
        except BaseException:
            print(f"-- the guest's console\n{self.console()}")
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.power_cut()
        self._folder.cleanup()
        os.close(self._lock)

    # -- power and card

    def new_card(self) -> None:
        """Put an empty card in. Only while the power is off."""
        copy = ["cp", "--sparse=always", "--reflink=auto"]
        subprocess.run([*copy, str(self._image / "card.raw"), str(self._card)], check=True)

    def boot(self, *, mount: bool = True) -> None:
        """Switch the power on; with `mount` wait until the card is mounted. Raises Failed, RuntimeError."""
        for tried in range(1, TRIES + 1):
            try:
                self._switch_on()
                break
            except (RuntimeError, TimeoutError):
                self.power_cut()
                if tried == TRIES:
                    raise
        self.sh(WAKE)
        if mount:
            self.sh(MOUNT)

    def _switch_on(self) -> None:
        self.qemu = Qemu(self._image, self._run, self._card, self._source, self._append)
        self._power.callback(self.qemu.kill)
        anew = {"now": time.time(), "boot": str(uuid.uuid4()), "entropy": secrets.token_hex(64)}
        self.qemu.answer(self.qemu.ask("wake", **anew), BOOT_S)

    def power_cut(self) -> None:
        """Take the power away: what is not on the card is lost."""
        self._power.close()

    @contextmanager
    def copied_card(self, to: Path) -> Iterator[None]:
        """Copy the card: what a cut would leave now. The machine stands still until the end of the context."""
        running = self.qemu.process.poll() is None
        if running:
            self.qemu.qmp("stop")
        subprocess.run(["cp", "--sparse=auto", str(self._card), str(to)], check=True)
        try:
            yield
        finally:
            if running:
                self.qemu.qmp("cont")

    def stall(self, on: bool) -> None:
        """Mask the interrupt of the card's controller: what is written does not complete until it is unmasked."""
        self.qemu.answer(self.qemu.ask("stall", on=on), LONG_S)

    def remove_card(self) -> None:
        """Pull the card."""
        self.qemu.qmp("blockdev-remove-medium", id="sd")

    def insert_card(self) -> None:
        """Put the same card in again."""
        self.qemu.qmp("blockdev-insert-medium", **{"id": "sd", "node-name": "card"})

    # -- what the guest does

    def start(self, command: str, seconds: float = 600.0) -> Job:
        """Start a bash command as root; it may take `seconds`. The next ones do not wait for it."""
        return Job(self, self.qemu.ask("sh", command=command, timeout=seconds))

    def sh(self, command: str, *, check: bool = True, seconds: float = LONG_S) -> str:
        """Run a bash command as root; its standard output and error. Raises Failed, RuntimeError if it hangs."""
        return self.start(command, seconds).wait(seconds + 30, check=check)

    def status(self, command: str, seconds: float = LONG_S) -> tuple[int, str]:
        """Run a bash command: its exit status and what it printed."""
        answer = self.qemu.answer(self.qemu.ask("sh", command=command, timeout=seconds), seconds + 30)
        return answer["code"], answer["out"]

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        self.sh(
            f"mkdir -p {shlex.quote(os.path.dirname(path))}; printf %s {shlex.quote(text)} >{shlex.quote(path)}"
        )

    def systemctl(self, *args: str) -> str:
        return self.sh(shlex.join(["systemctl", *args]))

    def console(self) -> str:
        """What the kernels wrote to the serial console, of all boots."""
        log = self._run / "console.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def kernel_log(self) -> str:
        """The kernel's messages of this boot."""
        return self.sh("dmesg")

    def records(self) -> list[str]:
        """The lines that the guest wrote to /dev/virtio-ports/records, which outlive it. Whole ones only."""
        return (self._run / "records").read_text().split("\n")[:-1]

    # -- hostguard

    def start_guard(self, config: str) -> None:
        """Start the guard with a configuration, and wait until it is ready."""
        self.configure(config)
        self.systemctl("start", "hostguard")

    def configure(self, config: str) -> None:
        """Write the configuration. Every boot needs it again."""
        self.write("/etc/hostguard/hostguard.toml", config)

    def ask(self, method: str, path: str, body: Any = None, seconds: float = LONG_S) -> tuple[int, Any]:
        """A request to the API: its status and JSON. Raises RuntimeError if nothing answers."""
        asked = self.qemu.ask("api", method=method, path=path, body=body, timeout=seconds)
        answer = self.qemu.answer(asked, seconds + 30)
        return answer["status"], json.loads(answer["body"])

    def get(self, path: str) -> Any:
        status, body = self.ask("GET", path)
        assert status == 200, body
        return body

    def send(self, to: str, content: Any = "", **fields: Any) -> int:
        """Send a message; its row, of the first mind."""
        status, body = self.ask("POST", "/v1/deliveries", {"to": to, "content": content, **fields})
        assert 200 <= status < 300, body
        row: int = body["deliveries"][0]["id"]
        return row

    def done(self, *rows: int, state: str = "done") -> list[Any]:
        """Wait until these rows are final: as `state`. They, in order."""
        ended = []
        for row in rows:
            found = self.get(f"/v1/deliveries/{row}?wait_s={LONG_S / 2}")
            assert found["state"] == state, found
            ended.append(found)
        return ended

    def wait_for(self, happened: Callable[[], object], seconds: float = LONG_S) -> None:
        """Wait until something has happened. Raises AssertionError."""
        end, pause = time.monotonic() + seconds, 0.1
        while not happened():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(pause)
            pause = min(1.5 * pause, 2)  # each look costs the guest's CPU


def make_image(suite: str) -> Path:
    """The folder of a virtual machine; it is built if there is none."""
    made = subprocess.run(
        [Path(__file__).parent / "image", suite], stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(made.stdout.strip())


def make_source(suite: str, disk: Path) -> None:
    """Write a disk image with the checkout, compiled by that Debian's Python, as a package has it."""
    found = subprocess.run([ROOT / "tests/rig/tree", suite], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="hostguard-src-") as folder:
        stage = Path(folder)
        stage.chmod(0o755)
        pyc = shutil.ignore_patterns("__pycache__")
        for part in ("hostguard", "units", "packaging", "tests/rig", "tests/vm"):
            shutil.copytree(ROOT / part, stage / part, ignore=pyc, symlinks=True)
        compiled = (
            f"chroot {found.stdout.strip()} python3 -m compileall -q --invalidation-mode unchecked-hash"
        )
        subprocess.run(
            ["unshare", "--mount", "sh", "-ec",
             f'mount --bind "$1" {found.stdout.strip()}/mnt; {compiled} -s /mnt -p /src /mnt/hostguard', "sh", stage],
            check=True,
        )  # fmt: skip
        with disk.open("wb") as file:
            file.truncate(SOURCE_MIB << 20)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", stage, disk], check=True)

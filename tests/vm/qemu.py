"""QEMU without KVM, with an emulated SD card: its command line, its control socket, and saved states to start from.

qemu.py save FOLDER    boot the disk of `image` with each of STATES, and keep the state a moment after that
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

BOOT_S = 300.0  # a cold boot takes 20 to 50 s on a quiet machine
TRIES = 3  # a cold boot of trixie crashed once in seven
NUDGE_S = 10.0  # a guest of trixie once slept on through its timers, until it was asked for something
MEMORY_M = 768
KERNEL = (
    "root=/dev/vda console=ttyS0 quiet loglevel=4 nokaslr mitigations=off net.ifnames=0 no_timer_check tsc=reliable "
    "random.trust_cpu=on audit=0 cryptomgr.notests panic=-1 systemd.show_status=false"
)
# More words for the kernel -> name of the state that is saved with them.
STATES = {"": "plain", "cgroup_disable=io": "no_io", "cgroup_disable=memory": "no_memory"}
# What hostguard and the tests use goes into the page cache before the state is saved.
WARM = """
python3 -c 'import click, croniter, dbus_next.aio, h11, psutil, pystemd, sqlite3, starlette'
systemd-run --quiet --scope true; systemctl list-units >/dev/null; journalctl -n1 >/dev/null
modprobe bfq; cat /usr/bin/{dd,sleep,find,mount,stat} /usr/sbin/{fsck.ext4,debugfs} >/dev/null
sync; sleep 1
"""


class Qemu:
    """A running QEMU. `image`: the folder of `image`; `run`: an empty folder for its files, which are
    console.log, records (what the guest writes to /dev/virtio-ports/records), agent and qmp (sockets).

    With `saved` it goes on from the state that was saved with `append`, one of STATES, else it boots.
    `card` and `source` are raw disk images; `source` is only read.
    """

    def __init__(
        self, image: Path, run: Path, card: Path, source: Path, append: str, *, saved: bool = True
    ) -> None:
        self.run = run
        for old in ("agent", "qmp", "disk.qcow2"):
            (run / old).unlink(missing_ok=True)
        name = STATES[append]
        kind, disk = ("qcow2", f"{name}.qcow2") if saved else ("raw", "disk.raw")
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", kind, "-b", str(image / disk)]
        subprocess.run([*command, str(run / "disk.qcow2")], check=True)
        state = ["-incoming", f"exec:cat {image}/{name}.state"] if saved else []
        with open(run / "qemu.err", "ab") as errors:
            self.process = subprocess.Popen(
                # Whatever becomes of the tests, no QEMU stays behind.
                ["setpriv", "--pdeathsig", "KILL", *arguments(image, run, card, source, append), *state],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip
        self._links = ExitStack()
        self._came = b""
        self._asked = 0
        self._answers: dict[int, dict[str, Any]] = {}
        try:
            self._qmp = self._links.enter_context(self._connect("qmp").makefile("rwb"))
            self._qmp.readline()
            self.qmp("qmp_capabilities")
            if saved:
                while self.qmp("query-status")["status"] not in ("paused", "running"):
                    time.sleep(0.02)
                self.qmp("cont")
            self._agent = self._connect("agent")
        except BaseException:
            self.kill()
            raise

    def qmp(self, name: str, **arguments: Any) -> Any:
        """A command of the QEMU Machine Protocol, and what it returns. Raises RuntimeError."""
        self._qmp.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        self._qmp.flush()
        while line := self._qmp.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(f"{name}: {answer['error']}")
            if "return" in answer:
                return answer["return"]
        raise RuntimeError(f"QEMU ended: {(self.run / 'qemu.err').read_text()}")

    def ask(self, do: str, **what: Any) -> int:
        """Ask the agent for something; the number under which `answer` has it."""
        self._asked += 1
        self._agent.settimeout(None)
        self._agent.sendall(json.dumps({"id": self._asked, "do": do, **what}).encode() + b"\n")
        return self._asked

    def answer(self, number: int, seconds: float) -> dict[str, Any]:
        """Wait for an answer. Raises TimeoutError, RuntimeError if the guest is gone or could not do it."""
        end = time.monotonic() + seconds
        while number not in self._answers:
            left = max(0.01, end - time.monotonic())
            self._agent.settimeout(min(left, NUDGE_S))
            try:
                came = self._agent.recv(1 << 16)
            except TimeoutError:
                if left <= NUDGE_S:
                    raise
                self.ask("nothing")
                continue
            if not came:
                raise RuntimeError("the guest is gone")
            *lines, self._came = (self._came + came).split(b"\n")
            self._answers.update((told["id"], told) for told in map(json.loads, lines))
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def kill(self) -> None:
        """Take the power away."""
        self.process.kill()
        self.process.wait()
        self._links.close()

    def _connect(self, name: str) -> socket.socket:
        link = self._links.enter_context(socket.socket(socket.AF_UNIX))
        for _ in range(1000):
            try:
                link.connect(str(self.run / name))
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.02)
            else:
                return link
        raise RuntimeError(f"QEMU did not start: {(self.run / 'qemu.err').read_text()}")


def arguments(image: Path, run: Path, card: Path, source: Path, append: str) -> list[str]:
    """QEMU's command line. A saved state fits only the one it was saved with."""
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2", "-m", str(MEMORY_M),
        "-kernel", f"{image}/vmlinux", "-initrd", f"{image}/initrd", "-append", f"{KERNEL} {append}",
        "-chardev", f"file,id=console,path={run}/console.log,append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{run}/qmp,server=on,wait=off",
        "-drive", f"if=none,id=disk,format=qcow2,cache=unsafe,file={run}/disk.qcow2",
        "-device", "virtio-blk-pci,drive=disk",
        "-drive", f"if=none,id=source,format=raw,readonly=on,file={source}",
        "-device", "virtio-blk-pci,drive=source",
        "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
        "-chardev", f"socket,id=agent,path={run}/agent,server=on,wait=off",
        "-device", "virtserialport,chardev=agent,name=agent",
        "-chardev", f"file,id=records,path={run}/records,append=on",
        "-device", "virtserialport,chardev=records,name=records",
        "-device", "sdhci-pci",
        # A raw file: what the guest wrote is in the host's page cache, which outlives QEMU. qcow2 would hold
        # back its own tables.
        "-blockdev", f"driver=raw,node-name=card,file.driver=file,file.filename={card},file.locking=off",
        "-device", "sd-card,drive=card,id=sd",
    ]  # fmt: skip


def save(image: Path) -> None:
    """Boot `disk.raw` of the folder; leaves a disk and a state for each of STATES. Raises RuntimeError."""
    for append in STATES:
        _insist(image, append)


def _insist(image: Path, append: str) -> None:
    for tried in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory(prefix="hostguard-vm-") as folder:
            run = Path(folder)
            try:
                _save(image, run, append)
            except (RuntimeError, TimeoutError) as error:
                log = (run / "console.log").read_text(errors="replace")
                print(f"boot {tried} of {TRIES} failed: {error}\n{log}", file=sys.stderr)
            else:
                return
    raise RuntimeError("the machine does not boot")


def _save(image: Path, run: Path, append: str) -> None:
    source = run / "source"
    with source.open("wb") as file:
        file.truncate(64 << 20)  # virtio tells the guest its size, which is in the saved state
    name = STATES[append]
    qemu = Qemu(image, run, image / "card.raw", source, append, saved=False)
    try:
        began = time.monotonic()
        qemu.answer(qemu.ask("sh", command="systemctl is-system-running --wait", timeout=BOOT_S), BOOT_S)
        print(f"{name}: booted in {time.monotonic() - began:.1f} s")
        print(qemu.answer(qemu.ask("sh", command=WARM, timeout=BOOT_S), BOOT_S)["out"])
        qemu.qmp("stop")
        qemu.qmp("migrate", uri=f"exec:cat >{image}/{name}.state")
        while (now := qemu.qmp("query-migrate"))["status"] not in ("completed", "failed"):
            time.sleep(0.1)
        if now["status"] == "failed":
            raise RuntimeError(f"the state cannot be saved: {now}")
        qemu.qmp("quit")
        qemu.kill()
        base = shutil.move(run / "disk.qcow2", image / f"{name}.qcow2")
        # By its bare name: the folder is moved when it is complete.
        subprocess.run(["qemu-img", "rebase", "-u", "-F", "raw", "-b", "disk.raw", base], check=True)
        size = (image / f"{name}.state").stat().st_size >> 20
        print(f"{name}: saved after {time.monotonic() - began:.1f} s, {size} MiB")
    finally:
        qemu.kill()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["save", folder]:
            save(Path(folder))
        case _:
            sys.exit(__doc__)

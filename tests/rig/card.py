#!/usr/bin/python3
"""A slow card: a real block device with ext4 on it, whose speed and full stop are set while it is written to.

An nbdkit plugin keeps the data in memory, nbdfuse shows it as a file, a loop device makes a disk of it, with
statistics and I/O pressure of its own. Needs root, nbdkit with its python plugin, nbdfuse, e2fsprogs.

    with Card(write_delay_ms=4, rate=4_000_000) as card:
        (card.mount / "file").write_text("slow")
        card.stop()  # from now on nothing completes

As a command: card.py --mount DIR -- COMMAND... runs COMMAND while the card is at DIR. It is stopped while the
file is there that CARD_STOP names.

While a card is stopped, whoever writes to it cannot be killed, and sync(2) hangs for the whole machine. So
keep stops short, and block children rather than the card's owner: when the thread that made the card ends, by
whatever means, the card goes too and its writers get an I/O error.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

BASE = Path("/run/hostguard-rig")
PLUGIN = Path(__file__).with_name("card_plugin.py")
WAIT_S = 10.0
BUSY_S = 2.0  # for killed writers to be gone

# linux/loop.h
LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
LOOP_MAJOR = 7
LO_FLAGS_AUTOCLEAR = 4
LO_FLAGS_DIRECT_IO = 16


class CardError(Exception):
    """The card could not be made, or not be taken away cleanly."""


class Card:
    """A context manager. `mount`: where its file system is; `device`: its block device, e.g. /dev/loop3.

    Delays are ms per request, one at a time; `rate` is bytes/s, None for no limit.
    """

    def __init__(
        self,
        *,
        mount: Path | None = None,
        size_mib: int = 256,
        write_delay_ms: float = 4,
        rate: float | None = 4_000_000,
    ) -> None:
        self.size_mib = size_mib
        self._wanted_mount = mount
        self._speed = {"read_delay": 0.0, "write_delay": write_delay_ms / 1000, "rate": rate}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Card:
        with contextlib.ExitStack() as self._undo:
            self._make()
            self._undo = self._undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def stop(self) -> None:
        """Nothing that is asked of the card completes from now on."""
        self.stop_file.touch()

    def go(self) -> None:
        """The end of `stop`."""
        self.stop_file.unlink(missing_ok=True)

    def set_rate(self, rate: float | None) -> None:
        """Bytes/s, None for no limit. Holds for requests under way too."""
        self._speed["rate"] = rate
        self._write_settings()

    def set_delay(self, *, write_ms: float | None = None, read_ms: float | None = None) -> None:
        """What each request takes besides its transfer; None: as it was. Holds for requests under way too."""
        for name, value in (("write_delay", write_ms), ("read_delay", read_ms)):
            if value is not None:
                self._speed[name] = value / 1000
        self._write_settings()

    def _write_settings(self, full_speed: bool = False) -> None:
        speed = dict.fromkeys(self._speed, 0.0) if full_speed else self._speed
        new = self.folder / "settings.new"
        new.write_text(json.dumps(speed))
        new.replace(self.folder / "settings")

    def _make(self) -> None:
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix="card-", dir=BASE))
        self.stop_file = self.folder / "stop"
        self._undo.callback(_discard, self.folder)
        self._undo.enter_context(_locked(self.folder / "lock"))
        self.mount = self._wanted_mount or self.folder / "mount"
        self._write_settings(full_speed=True)
        image = self.folder / "fuse" / "card"
        image.parent.mkdir()
        memory = [str(PLUGIN), f"size={self.size_mib << 20}", f"folder={self.folder}"]
        # Each dies with the one that started it. A session of their own, so that Ctrl-C leaves them to us.
        die = ["setpriv", "--pdeathsig", "KILL"]
        command = [*die, "nbdfuse", str(image), "[", *die, "nbdkit", "-f", "python", *memory, "]"]
        with (self.folder / "log").open("wb") as log:
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._undo.callback(_end, server)
        _wait(lambda: image.exists() or server.poll() is not None, "nbdfuse shows no file")
        if server.returncode is not None:
            raise CardError(f"nbdfuse ended: {(self.folder / 'log').read_text().strip()}")

        if not self.mount.exists():
            self.mount.mkdir(parents=True)
            self._undo.callback(self.mount.rmdir)
        with _loop_device(image) as self.device:
            mkfs = ["mke2fs", "-q", "-t", "ext4", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]
            _run(*mkfs, self.device)
            _run("mount", "-t", "ext4", "-o", "noatime", self.device, self.mount)
        self._undo.callback(_unmount, self.mount, self.device)
        self._undo.callback(self._write_settings, full_speed=True)
        self._undo.callback(self.go)
        self._write_settings()


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CardError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def _unmount(path: Path, device: str) -> None:
    end = time.monotonic() + BUSY_S
    while True:
        try:
            _run("umount", path)
            break
        except CardError:
            if time.monotonic() > end:
                _run("umount", "--lazy", path)
                raise
        time.sleep(0.02)
    # With its last user gone the kernel takes the loop device back.
    backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
    _wait(lambda: not backing.exists(), f"{device} is still in use")


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


def _wait(true: Callable[[], bool], problem: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > end:
            raise CardError(problem)
        time.sleep(0.005)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def _loop_device(image: Path) -> Iterator[str]:
    """A loop device over `image` that ends with its last user: we in here, and whoever mounts it."""
    control = os.open("/dev/loop-control", os.O_RDWR)
    backing = os.open(image, os.O_RDWR)
    # struct loop_config: fd, block size, loop_info64 with nothing but flags set, reserved.
    flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO
    config = struct.pack("=II52xI176x64x", backing, 0, flags)
    try:
        while True:
            number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
            device = f"/dev/loop{number}"
            with contextlib.suppress(FileExistsError):  # a guest's /dev has only the first few
                os.mknod(device, 0o660 | stat.S_IFBLK, os.makedev(LOOP_MAJOR, number))
            loop = os.open(device, os.O_RDWR)
            try:
                fcntl.ioctl(loop, LOOP_CONFIGURE, config)
                yield device
                return
            except OSError as error:
                if error.errno != errno.EBUSY:  # somebody else took it in between
                    raise
            finally:
                os.close(loop)
    finally:
        os.close(backing)
        os.close(control)


def _sweep() -> None:
    """Take away what owners that were killed left behind."""
    BASE.mkdir(mode=0o700, exist_ok=True)
    for old in BASE.glob("card-*"):
        with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(old / "lock"):
            _discard(old)


def _discard(folder: Path) -> None:
    backing_files = Path("/sys/block").glob("loop*/loop/backing_file")
    loops = [file.parents[1] for file in backing_files if file.read_text().startswith(f"{folder}/")]
    numbers = [(loop / "dev").read_text().strip() for loop in loops]
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        _, _, number, _, target, *_ = line.split()
        if number in numbers or target.startswith(f"{folder}/"):
            _run("umount", "--lazy", target.replace("\\040", " "))
    shutil.rmtree(folder)


def main() -> int:
    """Run a command while a card is there, with CARD_DEVICE and CARD_STOP set; returns the command's status."""
    parser = argparse.ArgumentParser(description="Run a command while a slow card is mounted.")
    parser.add_argument("--mount", type=Path, required=True, help="where the card's file system shall be")
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--write-delay-ms", type=float, default=4)
    parser.add_argument("--rate", type=float, default=4_000_000, help="bytes/s")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with Card(
            mount=args.mount, size_mib=args.size_mib, write_delay_ms=args.write_delay_ms, rate=args.rate
        ) as card:
            told = {"CARD_DEVICE": card.device, "CARD_STOP": str(card.stop_file)}
            child = subprocess.Popen(args.command, env=os.environ | told)
            # The terminal sends Ctrl-C to the command too: its end is ours.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.signal(signal.SIGTERM, lambda *_: child.terminate())
            status = child.wait()
    except (CardError, OSError) as error:
        print(f"card: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())

"""The parts of a virtual machine that come from a Debian's kernel packages; see `image`.

An emulated CPU is the scarce thing: the kernel is handed over unpacked, and the first file system is a bare cpio with
a static busybox and just the modules that the disk needs.

  initrd.py vmlinux BZIMAGE OUT        the kernel itself out of what the boot loader gets
  initrd.py initrd ROOT OUT MODULE...  the first file system
  initrd.py prune ROOT MODULE...       remove all other modules from the tree, all that is built in stays
"""

from __future__ import annotations

import gzip
import lzma
import stat
import struct
import subprocess
import sys
from pathlib import Path

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev; $b mount -t proc proc /proc; $b mount -t sysfs sys /sys
for m in {modules}; do $b insmod /modules/$m.ko; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 600 ]; do $b usleep 50000; i=$((i+1)); done
$b mount -t ext4 /dev/vda /root || exec $b sh
for d in dev proc sys; do $b mount --move /$d /root/$d; done
exec $b switch_root /root /lib/systemd/systemd
"""


def vmlinux(packed: bytes) -> bytes:
    """The ELF kernel in a bzImage: the payload of the setup header (Documentation/arch/x86/boot.rst)."""
    assert packed[0x202:0x206] == b"HdrS", "this is no bzImage"
    offset, length = struct.unpack_from("<II", packed, 0x248)
    start = ((packed[0x1F1] or 4) + 1) * 512 + offset
    payload = packed[start : start + length]
    # The last four bytes are the unpacked size, but in xz's own format.
    if payload.startswith(b"\xfd7zXZ\0"):
        kernel = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        kernel = gzip.decompress(payload[:-4])
    else:
        tool = {b"\x28\xb5": "zstd", b"\x02\x21": "lz4"}[payload[:2]]
        kernel = subprocess.run(
            [tool, "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=False
        ).stdout
    assert kernel.startswith(b"\x7fELF"), "what the bzImage holds is no ELF file"
    return kernel


class Modules:
    """The modules of the one kernel in a tree."""

    def __init__(self, root: Path) -> None:
        (self.folder,) = (root / "lib/modules").iterdir()
        self.files: dict[str, str] = {}
        self._needs: dict[str, list[str]] = {}
        for line in (self.folder / "modules.dep").read_text().splitlines():
            file, _, needs = line.partition(":")
            self.files[name(file)] = file
            self._needs[name(file)] = [name(other) for other in needs.split()]

    def with_needed(self, wanted: list[str]) -> list[str]:
        """These and what they need, in an order in which they can be loaded; without what is built in."""
        order: list[str] = []
        for module in map(name, wanted):
            if module in self.files:
                order += [other for other in reversed(self._needs[module]) if other not in order]
                order += [module] if module not in order else []
        return order

    def read(self, module: str) -> bytes:
        raw = (self.folder / self.files[module]).read_bytes()
        return lzma.decompress(raw) if self.files[module].endswith(".xz") else raw


def name(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0].replace("-", "_")


def cpio(entries: list[tuple[str, int, bytes]]) -> bytes:
    """A "newc" archive of (name, mode, content), see Documentation/driver-api/early-userspace/buffer-format.rst."""
    out = b""
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        raw = path.encode() + b"\0"
        device = (5, 1) if stat.S_ISCHR(mode) else (0, 0)
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        out += head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
    return out


def initrd(root: Path, wanted: list[str]) -> bytes:
    modules = Modules(root)
    order = modules.with_needed(wanted)
    (busybox,) = [path for path in (root / "bin/busybox", root / "usr/bin/busybox") if path.exists()][:1]
    entries = [
        (path, stat.S_IFDIR | 0o755, b"") for path in ("bin", "proc", "sys", "dev", "modules", "root", "run")
    ]
    entries.append(("dev/console", stat.S_IFCHR | 0o600, b""))
    entries.append(("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()))
    entries += [(f"modules/{module}.ko", stat.S_IFREG | 0o644, modules.read(module)) for module in order]
    entries.append(("init", stat.S_IFREG | 0o755, INIT.format(modules=" ".join(order)).encode()))
    return cpio(entries)


def prune(root: Path, wanted: list[str]) -> None:
    modules = Modules(root)
    keep = {modules.files[module] for module in modules.with_needed(wanted)}
    for path in sorted((modules.folder / "kernel").rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(modules.folder)) not in keep:
            path.unlink()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["vmlinux", packed, out]:
            Path(out).write_bytes(vmlinux(Path(packed).read_bytes()))
        case ["initrd", root, out, *wanted]:
            Path(out).write_bytes(initrd(Path(root), wanted))
        case ["prune", root, *wanted]:
            prune(Path(root), wanted)
        case _:
            sys.exit(__doc__)

"""The fork server and its stubs, in which turns begin. Runs apart from hostguard, without its modules.

A fork server, started with the guard, keeps stubs ready: forking it is far cheaper than forking the guard,
does not happen on the guard's event loop, and inherits nothing of the guard's sandbox.
A stub waits until its scope is up and the guard sends one message with four descriptors: what to run, its
stdin, the exit record, its output. Then it runs the command as the mind's user, and records how it ended,
even if the guard is gone. For a turn that is posted to a resident mind the stub is the scope's anchor: it
only waits If the guard dies before it sends the message, the stub exits without having run anything.
turns.exit_record.parse_record reads the record.

A stub that waits keeps its scope alive, and the turn's slot taken, wherever the turn's own processes go. It
has a user of its own: no mind may move, stop or kill it.

A stub can also look at a mind's file as the mind's user, for systemd/file_reader.py. It runs none of the
mind's code, and no other process of that user can trace it, since it was root.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import math
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

# The user and group of stubs, without a name. Neither Debian nor systemd gives this number to anybody: it is
# reserved in Debian's policy (9.2.2), and the one below nobody's.
HOLDER = 65533
NO_NEW_PRIVS = 38  # PR_SET_NO_NEW_PRIVS of linux/prctl.h
FDS_MAX = 64  # that come with a message
TAIL_S = 0.5  # for the end of a pipe that children of the command keep open
# May be sent to all processes of a turn: the stub ignores them, to record how the command ended.
OUTLIVED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)

_libc = ctypes.CDLL(None, use_errno=True)


def serve(control: socket.socket) -> None:
    """Fork a stub for each descriptor from `control`; return when the guard is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the stubs
    gc.freeze()
    while True:
        _, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not fds:
            return
        channel = socket.socket(fileno=fds[0])
        if os.fork() == 0:
            control.close()
            stub(channel)
        channel.close()


def stub(channel: socket.socket) -> NoReturn:
    """Send our pid to the guard, wait for its message, run the turn."""
    try:
        os.setsid()
        channel.send(str(os.getpid()).encode())
        word, fds, _, _ = socket.recv_fds(channel, 1, FDS_MAX)
        if word == b"l" and len(fds) in (2, 3):
            look(channel, *fds)
        channel.close()
        for fd in fds:
            os.set_inheritable(fd, False)  # recv_fds ignores MSG_CMSG_CLOEXEC
        if word == b"g" and len(fds) == 4:
            run(*fds)
        elif word == b"a" and fds:
            anchor(fds[0])
        elif word == b"w" and fds:
            _outlive()
            wait_for(fds)
        elif word == b"h":
            wait_for(fds)
    finally:
        os._exit(0)


def anchor(record: int) -> None:
    """Stay in the scope, and do nothing until the scope is stopped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.write(record, f"started {ticks()}\nanchor {os.getpid()}\n".encode())
    _become_holder()
    signal.sigwait({signal.SIGTERM})
    os.write(record, f"ended {ticks()}\n".encode())


def wait_for(processes: list[int]) -> None:
    """Stay in the scope until the processes of these pidfds have ended."""
    _become_holder()
    poller = select.poll()
    for pidfd in processes:
        poller.register(pidfd, select.POLLIN)
    left = len(processes)
    while left:
        for pidfd, _ in poller.poll():
            poller.unregister(pidfd)
            left -= 1


def run(spec_fd: int, stdin: int, record: int, output: int) -> None:
    """Run the command of the spec as its user, and write the record."""
    with open(spec_fd, "rb") as file:
        spec = json.load(file)
    captured = None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if spec["capture"]:
            os.close(output)
            captured, output = os.pipe()
        failure, tell = os.pipe()
        pid = os.fork()
    except OSError as error:
        os.write(record, f"not_started {spec['argv'][0]}: {error.strerror}\n".encode())
        return
    if pid == 0:
        _execute(spec, (stdin, output, output), record, tell)
    _outlive()
    for fd in (stdin, output, tell):
        os.close(fd)
    try:
        own_io = os.open("/proc/self/io", os.O_RDONLY)
    except OSError:
        own_io = None
    _become_holder()
    if failed := os.read(failure, 1 << 12):
        os.write(record, b"not_started " + failed)
        return
    said = b"" if captured is None else capture(captured, pid, spec["capture"])
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    text = f"ended {ticks()}\n" + (f"signal {-code}\n" if code < 0 else f"exit {code}\n")
    end = b"" if captured is None else b"\noutput\n" + said
    os.write(record, (text + account(spec["account"], own_io)).encode() + end)


def _execute(spec: dict[str, Any], streams: tuple[int, int, int], record: int, tell: int) -> NoReturn:
    """Become the command. `tell` gets the reason if that fails."""
    try:
        _lose_protection()
        os.umask(0o022)
        if spec.get("confined"):
            _gain_no_privileges()
        _become(spec["uid"], spec["gid"], spec["groups"])
        os.chdir(spec["cwd"])
        os.write(record, f"started {ticks()}\n".encode())
        for new, old in enumerate(streams):
            os.dup2(old, new)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606
    except OSError as error:
        where = spec["cwd"] if error.filename == spec["cwd"] else spec["argv"][0]
        os.write(tell, f"{where}: {error.strerror}\n".encode())
    finally:
        os._exit(1)


def capture(pipe: int, pid: int, most: int) -> bytes:
    """The first `most` bytes that the command and its children print until the command ends."""
    said, until = b"", math.inf
    ended = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    poller.register(ended, select.POLLIN)
    while time.monotonic() < until:
        ready = [fd for fd, _ in poller.poll(None if until == math.inf else TAIL_S * 1000)]
        if pipe in ready:
            part = os.read(pipe, 1 << 16)
            said = (said + part)[:most]
            if not part:
                break
        if ended in ready:
            poller.unregister(ended)
            until = time.monotonic() + TAIL_S
        if not ready:
            break
    return said


def ticks() -> int:
    """Ms since the boot, as in core/clock.py."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _lose_protection() -> None:
    """Minds do not get the guard's from the out-of-memory killer. A stub keeps it: it is to go last."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")


def _become(uid: int, gid: int, groups: list[int]) -> None:
    if os.geteuid() == 0:  # under a user's own service manager all processes are that user's
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _become_holder() -> None:
    os.chdir("/")
    _become(HOLDER, HOLDER, [])


def _outlive() -> None:
    for number in OUTLIVED:
        signal.signal(number, signal.SIG_IGN)


def _gain_no_privileges() -> None:
    """For the rest of its life, a program with setuid, setgid or file capabilities is as any other."""
    if _libc.prctl(NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
        raise OSError(ctypes.get_errno(), "no sandbox")


# -- a mind's file


def look(channel: socket.socket, spec_fd: int, content: int, inotify: int | None = None) -> None:
    """As the mind's user, watch the folders on the way to a file, copy it to `content`, and report.

    Whatever the file is (a FIFO, a link to anywhere, on a FUSE that never answers), nobody but this process
    waits for it, and that ends after `seconds`. Without an `inotify` the user's own is made and sent along.
    """
    with open(spec_fd, "rb") as given:
        spec = json.load(given)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(spec["seconds"])
    _lose_protection()
    _become(spec["uid"], spec["gid"], spec["groups"])
    new: list[int] = []
    seen: dict[str, Any] = {
        "watches": [],
        "blind": None,
        "errno": 0,
        "fault": None,
        "stamp": None,
        "owner": 0,
    }
    if inotify is None:
        inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if inotify >= 0:
            new = [inotify]
        else:
            seen["blind"] = [ctypes.get_errno(), None]
    if inotify >= 0:  # first, so that a change after the reading is seen
        seen |= _watch(inotify, spec)
    try:
        seen |= _read(spec, content)
    except OSError as error:
        seen["errno"] = error.errno
    socket.send_fds(channel, [json.dumps(seen).encode()], new)


def _read(spec: dict[str, Any], content: int) -> dict[str, Any]:
    """Copy the file, unless it is as it was. Raises OSError."""
    fd = os.open(spec["path"], os.O_PATH | os.O_CLOEXEC)  # opens nothing, and cannot be swapped any more
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return {"fault": "is not a regular file"}
    stamp = [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
    found = {"stamp": stamp, "owner": info.st_uid}
    if stamp == spec["stamp"]:
        return found
    # O_NONBLOCK: another process may have a lease on it.
    source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    left = spec["most"] + 1
    while left > 0 and (part := os.read(source, min(left, 1 << 16))):
        os.write(content, part)
        left -= len(part)
    return found | {"fault": None if left > 0 else f"is larger than {spec['most']} bytes"}


def _watch(inotify: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Watch all folders on the path to the file, from the root on, and on the path that its links lead to."""
    watches: list[tuple[int, str]] = []
    ways = {spec["path"]: None}
    with suppress(OSError):  # a link in /proc that the user may not follow
        ways[os.path.realpath(spec["path"])] = None
    for way in ways:
        for folder, entry, last in _way(way):
            mask = spec["last_mask"] if last else spec["mask"]
            watch = _libc.inotify_add_watch(inotify, os.fsencode(folder), ctypes.c_uint32(mask))
            if watch >= 0:
                watches.append((watch, entry))
                continue
            code = ctypes.get_errno()
            if code in (errno.ENOENT, errno.ENOTDIR):
                break  # the folder above reports when it appears
            if last or code != errno.EACCES:  # a folder of root may be one to pass through only
                return {"watches": watches, "blind": [code, folder]}
    return {"watches": watches}


def _way(path: str) -> Iterator[tuple[str, str, bool]]:
    """(folder, its entry on the path, whether that is the file) from the root on."""
    entries = [entry for entry in path.split("/") if entry]
    for number, entry in enumerate(entries):
        yield "/" + "/".join(entries[:number]), entry, number == len(entries) - 1


def account(files: dict[str, str], own_io: int | None) -> str:
    """The scope's CPU in µs and memory in bytes, and the bytes read from and written to storage.

    `own_io`: a descriptor of /proc/self/io, which only root may open once this has another user; or None.
    """
    lines = []
    # A parent's account includes that of each reaped child.
    for path, keys in (
        (files["cpu_stat"], {"usage_usec": "cpu_usec"}),
        (own_io, {"read_bytes:": "read_bytes", "write_bytes:": "write_bytes"}),
    ):
        try:
            if path is None:
                continue
            with open(path) as file:
                pairs = [line.split() for line in file]
        except OSError:
            continue
        lines += [f"{keys[pair[0]]} {pair[1]}\n" for pair in pairs if pair[0] in keys]
    try:
        with open(files["memory_peak"]) as file:
            lines.append(f"memory_peak {file.read()}")
    except OSError:
        pass
    return "".join(lines)


if __name__ == "__main__":
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # no later descriptor may be 0: a turn's stdin is duplicated to it
    os.close(null)
    serve(control)

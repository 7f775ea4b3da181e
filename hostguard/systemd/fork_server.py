"""The fork server and its stubs, in which turns begin. Runs apart from hostguard, without its modules.

A fork server, started with the guard, keeps stubs ready: forking it is far cheaper than forking the guard,
does not happen on the guard's event loop, and inherits nothing of the guard's sandbox.
A stub waits until its scope is up and the guard sends one message with four descriptors: what to run, its
stdin, the exit record, its output. Then it becomes the mind's user, runs the command, and records how it
ended, even if the guard is gone. For a turn that is posted to a resident mind the stub is the scope's anchor:
it only waits until it is killed. If the guard dies before it sends the message, the stub exits without having
run anything. turns.exit_record.parse_record reads the record.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

NOBODY = 65534
TAIL_S = 0.5  # for the end of a pipe that children of the command keep open
# May be sent to all processes of a turn: the stub ignores them, to record how the command ended.
OUTLIVED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


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
        word, fds, _, _ = socket.recv_fds(channel, 1, 4)
        channel.close()
        for fd in fds:
            os.set_inheritable(fd, False)  # recv_fds ignores MSG_CMSG_CLOEXEC
        if word == b"g" and len(fds) == 4:
            run(*fds)
        elif word == b"a" and fds:
            anchor(fds[0])
    finally:
        os._exit(0)


def anchor(record: int) -> None:
    """Stay in the scope, as nobody, and do nothing until the scope is stopped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.write(record, f"started {ticks()}\nanchor {os.getpid()}\n".encode())
    _become({"groups": [], "gid": NOBODY, "uid": NOBODY, "cwd": "/"})
    signal.sigwait({signal.SIGTERM})
    os.write(record, f"ended {ticks()}\n".encode())


def run(spec_fd: int, stdin: int, record: int, output: int) -> None:
    """Run the command of the spec as its user, and write the record."""
    with open(spec_fd, "rb") as file:
        spec = json.load(file)
    captured = None
    try:
        if spec["capture"]:
            os.close(output)
            captured, output = os.pipe()
        _become(spec)
        os.write(record, f"started {ticks()}\n".encode())
        argv = spec["argv"]
        moves = [(os.POSIX_SPAWN_DUP2, old, new) for new, old in enumerate((stdin, output, output))]
        pid = os.posix_spawn(
            argv[0], argv, spec["env"], file_actions=moves, setsigdef=DEFAULTS, setsigmask=()
        )
    except OSError as error:
        where = spec["cwd"] if error.filename == spec["cwd"] else spec["argv"][0]
        os.write(record, f"not_started {where}: {error.strerror}\n".encode())
        return
    for fd in (stdin, output):
        os.close(fd)
    for number in OUTLIVED:
        signal.signal(number, signal.SIG_IGN)
    said = b"" if captured is None else capture(captured, pid, spec["capture"])
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    text = f"ended {ticks()}\n" + (f"signal {-code}\n" if code < 0 else f"exit {code}\n")
    end = b"" if captured is None else b"\noutput\n" + said
    os.write(record, (text + account(spec["account"])).encode() + end)


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


def _become(spec: dict[str, Any]) -> None:
    # Minds do not get the guard's protection from the out-of-memory killer.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")
    os.umask(0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.geteuid() == 0:  # under a user's own service manager all processes are that user's
        os.setgroups(spec["groups"])
        os.setresgid(spec["gid"], spec["gid"], spec["gid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    os.chdir(spec["cwd"])


def account(files: dict[str, str]) -> str:
    """The scope's CPU in µs and memory in bytes, and the bytes read from and written to storage."""
    lines = []
    # A parent's account includes that of each reaped child.
    for path, keys in (
        (files["cpu_stat"], {"usage_usec": "cpu_usec"}),
        ("/proc/self/io", {"read_bytes:": "read_bytes", "write_bytes:": "write_bytes"}),
    ):
        try:
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

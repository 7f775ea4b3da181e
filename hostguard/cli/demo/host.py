"""What the demo changes on the host, and its undoing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.demo.plan import CAP, MINDS, Note, configured, drop_in, read_note, restoring, space
from hostguard.cli.demo.signals import Signals
from hostguard.cli.errors import CliError, ConnectionLost, NotRunning
from hostguard.core import paths
from hostguard.core.units import mind_slice
from hostguard.linux.files import write_whole

DROP_INS = paths.DROP_INS[-1]
FILE = DROP_INS / "demo-minds.toml"
BACK_S = 15.0  # for a daemon that is being restarted
ENDED_S = 120.0  # for turns that were stopped in the middle of a write to a stalled device
GLOBAL = "global_concurrent_turns"
FOLDER_PREFIX = "hostguard-demo-"


class Host:
    """The host with the demo's minds on it. Made by `prepared`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self._note = Note(str(folder))

    def configure(self) -> None:
        """Make the demo's minds known to the guard. Raises CliError."""
        self._write_note()
        answer = client.call("POST", "/v1/reload")
        if str(FILE) not in answer["sources"]:
            raise CliError(
                f"the daemon does not read {FILE}: do HOSTGUARD_CONFIG and HOSTGUARD_RUNTIME differ?"
            )

    def set_cap(self) -> None:
        """Let at most CAP turns run until the end of the demo. Raises CliError."""
        limit = _global_limit()
        if limit["value"] == CAP:
            return
        value, runtime = restoring(limit)
        self._note = Note(str(self.folder), value, runtime)
        self._write_note()
        _set_global_limit(CAP, True)

    def clear(self) -> None:
        """Remove what a phase wrote, so that the next one finds the device as this one did."""
        for file in self.folder.iterdir():
            file.unlink()
        fd = os.open(self.folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def undo(self) -> None:
        """Undo everything. Raises CliError that names what could not be undone."""
        _undo(self._note)

    def _write_note(self) -> None:
        # In one step: the daemon may read it at any time.
        write_whole(FILE, drop_in(self._note, self.size))


@contextmanager
def prepared(base: Path, size: int, signals: Signals) -> Iterator[Host]:
    """The host, ready for the demo to run in a fresh folder of `base`; all is undone in the end.

    Raises CliError.
    """
    if os.geteuid() != 0:
        raise CliError("the demo starts turns of root's: run it with sudo")
    state = client.call("GET", "/v1/status")["state"]
    if state != "running":
        raise CliError(f"the guard does not start turns now, it is {state}: hostguard status")
    with _alone(), signals.held():
        made = _make_drop_in_folder()
        host = None
        try:
            _clean_up()
            host = Host(_fresh_folder(base, size), size)
            host.configure()
            try:
                with signals.let():
                    yield host
            except BaseException:
                click.echo("ending the demo: its turns are stopped, and what it changed is undone", err=True)
                raise
        finally:
            try:
                if host is not None:
                    host.undo()
            finally:
                if made:
                    with suppress(OSError):  # somebody put a file there meanwhile
                        DROP_INS.rmdir()


@contextmanager
def _alone() -> Iterator[None]:
    fd = os.open(paths.RUNTIME, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CliError("another `hostguard demo` runs on this host") from None
    finally:
        os.close(fd)


def _make_drop_in_folder() -> bool:
    try:
        DROP_INS.mkdir(mode=0o755)
    except FileExistsError:
        return False
    return True


def _clean_up() -> None:
    """Undo what a demo that was killed has left. Raises CliError if its names belong to somebody else."""
    if FILE.exists():
        _undo(read_note(FILE.read_text(errors="replace")) or Note(""))
    wanted = {configured(mind) for mind in MINDS}
    found = [mind for mind in client.call("GET", "/v1/minds")["minds"] if mind["name"] in wanted]
    for mind in found:
        if mind["state"] != "unknown":
            raise CliError(f"the host has a mind {mind['name']} already, whose name the demo needs")
    if found:  # rows outlive a reboot, the file does not
        _end_turns()


def _fresh_folder(base: Path, size: int) -> Path:
    try:
        free = os.statvfs(base)
        if free.f_bavail * free.f_frsize < space(size):
            raise CliError(
                f"{base} has {free.f_bavail * free.f_frsize >> 20} MiB free, the demo needs"
                f" {space(size) >> 20} MiB: choose another --dir or a smaller --size"
            )
        str(base.resolve()).encode()
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=base.resolve()))
    except OSError as error:
        raise CliError(f"{base}: {error.strerror}") from None
    except UnicodeEncodeError:
        raise CliError(f"{base}: the name is not UTF-8: choose another --dir") from None


def _global_limit() -> dict[str, Any]:
    limits = client.call("GET", "/v1/limits")["limits"]
    return next(limit for limit in limits if limit["name"] == GLOBAL and limit["mind"] is None)


def _set_global_limit(value: int | str, runtime: bool) -> None:
    client.call(
        "PATCH", "/v1/limits", body={"name": GLOBAL, "mind": None, "value": value, "runtime": runtime}
    )


# -- undoing


def _undo(note: Note) -> None:
    _wait_for_daemon()
    failed = []
    for step in (_end_turns, lambda: _restore_limit(note), lambda: _remove(note.folder)):
        try:
            step()
        except (CliError, OSError, subprocess.SubprocessError) as error:
            failed.append(str(error))
    if failed:
        # The note stays, too.
        causes = "\n".join(dict.fromkeys(failed))
        raise CliError(f"the demo could not be undone; the next `hostguard demo` does it first:\n{causes}")
    FILE.unlink(missing_ok=True)
    client.call("POST", "/v1/reload")


def _wait_for_daemon() -> None:
    until = time.monotonic() + BACK_S
    while time.monotonic() < until:
        try:
            client.call("GET", "/v1/status", read_s=BACK_S)
        except (NotRunning, ConnectionLost):
            time.sleep(0.2)
        except CliError:  # each step tells what it could not do
            return
        else:
            return


def _end_turns() -> None:
    until = time.monotonic() + ENDED_S
    while True:
        try:
            left = _cancel_queued()
        finally:
            # With their slices, which systemd would otherwise keep; this works without the daemon, too. Last,
            # also of all: a turn that was being started makes its slice anew.
            slices = [mind_slice(configured(mind)) for mind in MINDS]
            subprocess.run(["systemctl", "stop", "--", *slices], check=True, timeout=ENDED_S)
        if not left:
            return
        if time.monotonic() > until:
            raise CliError("turns of the demo still run")
        time.sleep(0.1)


def _cancel_queued() -> int:
    """Cancel the demo's queued rows; how many were not final before."""
    rows = [
        row
        for mind in MINDS
        for row in client.call("GET", "/v1/deliveries", params={"mind": configured(mind)})["deliveries"]
    ]
    for row in rows:
        if row["state"] == "queued":
            with suppress(CliError):  # it started just now: the next look tells
                client.call("POST", f"/v1/deliveries/{row['id']}/cancel")
    return len(rows)


def _restore_limit(note: Note) -> None:
    if note.limit is None:
        return
    limit = _global_limit()
    if (limit["value"], limit["source"]) == (CAP, "runtime"):  # otherwise somebody has changed it meanwhile
        _set_global_limit(note.limit, note.runtime)


def _remove(folder: str) -> None:
    if Path(folder).name.startswith(FOLDER_PREFIX):  # a note may have been edited
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)

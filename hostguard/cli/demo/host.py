"""The changes of the demo to the host, their undoing, and the signals that end it: never during a change."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.demo.plan import CAP, MINDS, Note, configured, drop_in, read_note, restoring, space
from hostguard.cli.errors import CliError, ConnectionLost, NotRunning
from hostguard.core import paths
from hostguard.core.units import mind_slice
from hostguard.linux.files import write_whole

DROP_INS = paths.DROP_INS[-1]
FILE = DROP_INS / "demo-minds.toml"
BACK_S = 15.0  # for a daemon that restarts
ENDED_S = 120.0  # for turns stopped during a write to a stalled device
GLOBAL = "global_concurrent_turns"
FOLDER_PREFIX = "hostguard-demo-"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A signal raises KeyboardInterrupt or SystemExit(128 + number), immediately or at the end of `held`."""

    def __init__(self) -> None:
        self._holding = 0
        self._pending: int | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals inside this context."""
        before = {number: signal.signal(number, self._handle) for number in ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals do not interrupt this context."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            self._raise_pending()

    @contextmanager
    def let(self) -> Iterator[None]:
        """Signals may interrupt this context, although it is inside `held`."""
        holding, self._holding = self._holding, 0
        try:
            self._raise_pending()
            yield
        finally:
            self._holding = holding

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending = number
        self._raise_pending()

    def _raise_pending(self) -> None:
        if self._holding or self._pending is None:
            return
        number, self._pending = self._pending, None
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


class Host:
    """The host with the demo's minds on it. Made by `prepared`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.note = Note(str(folder))

    def configure(self) -> None:
        """Configure the demo's minds. Raises CliError."""
        self._write_note()
        answer = client.call("POST", "/v1/reload")
        if str(FILE) not in answer["sources"]:
            raise CliError(f"the daemon does not read {FILE}: check HOSTGUARD_CONFIG and HOSTGUARD_RUNTIME")

    def set_cap(self) -> None:
        """Set the global cap to CAP until the end of the demo. Raises CliError."""
        limit = _global_limit()
        if limit["value"] == CAP:
            return
        value, runtime = restoring(limit)
        self.note = Note(str(self.folder), value, runtime)
        self._write_note()
        _set_global_limit(CAP, True)

    def clear(self) -> None:
        """Remove the files of a phase, so that the next one starts with the same device."""
        for file in self.folder.iterdir():
            file.unlink()
        fd = os.open(self.folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def _write_note(self) -> None:
        write_whole(FILE, drop_in(self.note, self.size))


@contextmanager
def prepared(base: Path, size: int, signals: Signals) -> Iterator[Host]:
    """The host, prepared for the demo in a new directory of `base`. All changes are undone at the end.

    Raises CliError.
    """
    if os.geteuid() != 0:
        raise CliError("the demo starts turns as root: run it with sudo")
    state = client.call("GET", "/v1/status")["state"]
    if state != "running":
        raise CliError(f"the guard is {state} and starts no turns: see hostguard status")
    with _alone(), signals.held():
        made = not DROP_INS.exists()
        DROP_INS.mkdir(mode=0o755, exist_ok=True)
        host = None
        try:
            _clean_up()
            host = Host(_fresh_folder(base, size), size)
            host.configure()
            try:
                with signals.let():
                    yield host
            except BaseException:
                click.echo("ending the demo: stopping its turns and undoing its changes", err=True)
                raise
        finally:
            try:
                if host is not None:
                    _undo(host.note)
            finally:
                if made:
                    with suppress(OSError):  # it contains another file now
                        DROP_INS.rmdir()


@contextmanager
def _alone() -> Iterator[None]:
    fd = os.open(paths.RUNTIME, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CliError("another `hostguard demo` is running on this host") from None
    finally:
        os.close(fd)


def _clean_up() -> None:
    """Undo the changes of a killed demo. Raises CliError if its names belong to other minds."""
    if FILE.exists():
        _undo(read_note(FILE.read_text(errors="replace")) or Note(""))
    wanted = {configured(mind) for mind in MINDS}
    found = [mind for mind in client.call("GET", "/v1/minds")["minds"] if mind["name"] in wanted]
    for mind in found:
        if mind["state"] != "unknown":
            raise CliError(f"the host already has a mind {mind['name']}, a name that the demo needs")
    if found:  # rows survive a reboot, the file does not
        _end_turns()


def _fresh_folder(base: Path, size: int) -> Path:
    try:
        free = os.statvfs(base)
        if free.f_bavail * free.f_frsize < space(size):
            raise CliError(
                f"{base} has {free.f_bavail * free.f_frsize >> 20} MiB free, the demo needs"
                f" {space(size) >> 20} MiB: use another --dir or a smaller --size"
            )
        str(base.resolve()).encode()
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=base.resolve()))
    except OSError as error:
        raise CliError(f"{base}: {error.strerror}") from None
    except UnicodeEncodeError:
        raise CliError(f"{base}: the name is not UTF-8: use another --dir") from None


def _global_limit() -> dict[str, Any]:
    limits = client.call("GET", "/v1/limits")["limits"]
    return next(limit for limit in limits if limit["name"] == GLOBAL and limit["mind"] is None)


def _set_global_limit(value: int | str, runtime: bool) -> None:
    body = {"name": GLOBAL, "mind": None, "value": value, "runtime": runtime}
    client.call("PATCH", "/v1/limits", body=body)


# -- undoing


def _undo(note: Note) -> None:
    """Undo all changes. Raises CliError with those that could not be undone."""
    _wait_for_daemon()
    failed = []
    for step in (_end_turns, lambda: _restore_limit(note), lambda: _remove(note.folder)):
        try:
            step()
        except (CliError, OSError, subprocess.SubprocessError) as error:
            failed.append(str(error))
    if failed:
        # The note stays as well.
        causes = "\n".join(dict.fromkeys(failed))
        raise CliError(f"not all changes were undone; the next `hostguard demo` does that first:\n{causes}")
    FILE.unlink(missing_ok=True)
    client.call("POST", "/v1/reload")


def _wait_for_daemon() -> None:
    until = time.monotonic() + BACK_S
    while time.monotonic() < until:
        try:
            client.call("GET", "/v1/status", read_s=BACK_S)
            return
        except (NotRunning, ConnectionLost):
            time.sleep(0.2)
        except CliError:  # each step reports its own errors
            return


def _end_turns() -> None:
    until = time.monotonic() + ENDED_S
    while True:
        try:
            left = _cancel_queued()
        finally:
            # Stop the slices, which systemd would otherwise keep; this works without the daemon. It comes
            # last, because a turn that was starting creates its slice again.
            slices = [mind_slice(configured(mind)) for mind in MINDS]
            subprocess.run(["systemctl", "stop", "--", *slices], check=True, timeout=ENDED_S)
        if not left:
            return
        if time.monotonic() > until:
            raise CliError("turns of the demo are still running")
        time.sleep(0.1)


def _cancel_queued() -> int:
    """Cancel the demo's queued rows; the number of rows that were not final."""
    rows = [
        row
        for mind in MINDS
        for row in client.call("GET", "/v1/deliveries", params={"mind": configured(mind)})["deliveries"]
    ]
    for row in rows:
        if row["state"] == "queued":
            with suppress(CliError):  # it has just started: the next check shows it
                client.call("POST", f"/v1/deliveries/{row['id']}/cancel")
    return len(rows)


def _restore_limit(note: Note) -> None:
    if note.limit is None:
        return
    limit = _global_limit()
    if (limit["value"], limit["source"]) == (CAP, "runtime"):  # otherwise it was changed meanwhile
        _set_global_limit(note.limit, note.runtime)


def _remove(folder: str) -> None:
    if Path(folder).name.startswith(FOLDER_PREFIX):  # the note may have been edited
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)

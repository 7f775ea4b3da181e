"""The minds of Volute's registry, which are minds of the guard, and how to reach Volute's daemon.

The registry is a database that Volute writes to at each event of a mind, so changes of the file say little.
It is read at the start, and again when something shows that it may have changed: a message to a port without
a known mind, a connection that a mind's port refuses (Volute asks it for its health before each start of the
mind), a start of Volute's service, or a daemon that does not know our token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hostguard.core import paths
from hostguard.core.model import Config, Mind
from hostguard.core.names import mind_name_fault
from hostguard.core.signals import Redrive, Signal
from hostguard.gate.policy import Policy
from hostguard.linux import files
from hostguard.systemd.fork_client import Stub

log = logging.getLogger(__name__)

PYTHON = os.path.realpath(sys.executable)  # the user may not enter a virtual environment
SCRIPT = Path(__file__).with_name("registry_rows.py")
ANSWER_MAX = 128 << 10  # bytes
ANSWER_S = 20.0  # longer than the script lives
REST_S = 1.0  # between two reads
NOWHERE = {"cpu_stat": os.devnull, "memory_peak": os.devnull}  # what the reading takes is not accounted
ANYWHERE = {"0.0.0.0", "::", "localhost"}  # noqa: S104


class Forks(Protocol):
    """Starts processes. systemd.fork_client.ForkClient does."""

    async def take(self) -> Stub:
        """A process that waits for what to do. Raises OSError."""


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """Where Volute's daemon answers over HTTP, and the token that lets the guard read there."""

    host: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Known:
    """What the registry says. `names`: the mind of each port. `daemon`: None while it does not run."""

    names: Mapping[int, str] = field(default_factory=dict)
    daemon: DaemonAddress | None = None


def known(rows: Any, daemon: Any, ports: tuple[int, int]) -> Known:
    """What a reading found, as far as it can be used. A mind whose name the guard cannot have is logged."""
    names: dict[int, str] = {}
    for name, port in rows:
        if not isinstance(name, str) or not isinstance(port, int) or not ports[0] <= port <= ports[1]:
            continue
        if fault := mind_name_fault(name):
            log.error("the mind %.60r of Volute gets its messages past the gate: %s", name, fault)
        else:
            names[port] = name
    return Known(names, _address(daemon))


def _address(daemon: Any) -> DaemonAddress | None:
    if not isinstance(daemon, dict):
        return None
    host, token = daemon.get("hostname"), daemon.get("token")
    port = daemon.get("internalPort") or daemon.get("port")  # with TLS, the internal one is plain HTTP
    if not isinstance(port, int) or not 0 < port < 65536 or not isinstance(token, str) or not token:
        return None
    return DaemonAddress("127.0.0.1" if not isinstance(host, str) or host in ANYWHERE else host, port, token)


def joined(config: Config, names: Mapping[int, str]) -> Config:
    """The configuration with Volute's minds. Of a configured one without command and url its limits hold."""
    minds = {name: mind for name, mind in config.minds.items() if mind.volute is None}
    if config.volute is None:
        return replace(config, minds=minds)
    for port, name in names.items():
        own = config.minds.get(name, Mind(name, limits=config.turn))
        if own.command or (own.url and own.volute is None):
            log.warning("[minds.%s] is ignored: Volute has a mind of this name", name)
            own = Mind(name, limits=config.turn)
        url = f"http://127.0.0.1:{port}"
        minds[name] = replace(own, url=url, unit=None, volute=config.volute.unit)
    return replace(config, minds=minds)


@dataclass(eq=False)
class Registry:
    """Volute's registry as it was read last. `changed`: it, or the daemon's address, differs since."""

    _policy: Policy
    _forks: Forks
    _redrive: Signal[Redrive]
    changed: Signal[Known]
    fault: str | None = field(default=None, init=False)  # why the last reading failed
    _known: Known = field(default_factory=Known, init=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _began: float = field(default=-REST_S, init=False)  # of the last reading, on the loop's clock

    def recall(self) -> None:
        """Take what an earlier guard read in this boot: its turns must have their minds. Blocks."""
        names = files.recall(paths.VOLUTE, lambda note: {int(port): str(name) for port, name in note})
        self._known = Known(names or {})

    @property
    def known(self) -> Known:
        """What the last reading found."""
        return self._known

    def joined(self, config: Config) -> Config:
        """The configuration with the minds that are known."""
        return joined(config, self._known.names)

    async def mind_at(self, port: int) -> str | None:
        """The mind that has the port. One that is not known is looked for. Raises OSError."""
        if port not in self._known.names:
            await self.read()
            if self.fault is not None and port not in self._known.names:
                raise OSError(self.fault)
        return self._known.names.get(port)

    async def read(self) -> None:
        """Read the registry, or wait for a reading that begins after this call."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._reading:
            if self._began >= asked:
                return
            await asyncio.sleep(max(0.0, self._began + REST_S - loop.time()))
            self._began = loop.time()
            volute = self._policy.config.volute
            if volute is None:
                return
            try:
                found = known(*await self._ask(volute.home), volute.ports)
            except (OSError, ValueError, TypeError) as error:
                if self.fault != str(error):
                    log.warning("the registry of Volute cannot be read: %s", error)
                self.fault = str(error)
                return
            self.fault = None
            if found != self._known:
                await self._take(found)

    async def _take(self, found: Known) -> None:
        before, self._known = self._known.names, found
        if found.names != before:
            log.info("minds of Volute: %s", ", ".join(sorted(found.names.values())) or "none")
            self._policy.config = self.joined(self._policy.config)
            try:
                await asyncio.to_thread(files.note, paths.VOLUTE, [*found.names.items()])
            except OSError as error:
                log.warning("%s cannot be written: %s", paths.VOLUTE, error)
            self._redrive.send(Redrive())
        self.changed.send(found)

    async def _ask(self, home: str) -> tuple[Any, Any]:
        """(the minds, daemon.json), by a process of Volute's user. Raises OSError, ValueError."""
        spec = {
            "argv": [PYTHON, "-I", "-S", "-", home], "env": {}, "cwd": "/",
            "capture": ANSWER_MAX, "uid": os.geteuid(), "gid": os.getegid(), "groups": [], "account": NOWHERE,
        }  # fmt: skip
        stub = await self._forks.take()
        record = os.memfd_create("volute")
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(stub.pidfd, ended.set)
        try:
            stub.release(spec, SCRIPT.read_bytes(), Path(f"/proc/self/fd/{record}"), None)
            async with asyncio.timeout(ANSWER_S):
                await ended.wait()
            said = os.pread(record, 2 * ANSWER_MAX, 0).partition(b"\noutput\n")[2]
        except TimeoutError:
            raise OSError(f"{home} does not answer") from None
        finally:
            loop.remove_reader(stub.pidfd)
            stub.kill()
            stub.close()
            os.close(record)
        answer = json.loads(said)
        if isinstance(answer, str):
            raise OSError(answer)
        rows, daemon = answer
        return rows, daemon

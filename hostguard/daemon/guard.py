"""The life of hostguardd: starts the parts, follows the service manager's signals, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
import time
from typing import Any

from starlette.applications import Starlette

from hostguard import __version__
from hostguard.api.app import Operator, Status, make_app
from hostguard.api.deliveries import Deliveries, Waiting
from hostguard.api.metrics import Metrics
from hostguard.api.minds import Minds
from hostguard.api.pressure import Pressure
from hostguard.api.report import Reporter
from hostguard.api.schedules import Schedules
from hostguard.api.server import LOCAL, Server, listen
from hostguard.api.standby import Stopped, open_queue
from hostguard.api.turns import Turns
from hostguard.api.views import Views
from hostguard.api.volute import Endpoint
from hostguard.api.web import Pages, WebEndpoint
from hostguard.config.load import ConfigError, load
from hostguard.core import paths
from hostguard.core.model import Config
from hostguard.core.signals import (
    Pumped,
    QueueDamaged,
)
from hostguard.daemon.parts import Parts
from hostguard.linux import mlock
from hostguard.linux.disk import Device, choose
from hostguard.pressure.freezer import thaw_left
from hostguard.store.connection import SchemaTooNew
from hostguard.store.writer import Queue, Unavailable
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.systemd.journal import Journal, take_over
from hostguard.systemd.notify import Notifier, watchdog_s
from hostguard.telemetry.events import Event

log = logging.getLogger("hostguard")

USAGE = """usage: hostguardd [--user | --version]
The daemon, configured in /etc/hostguard/hostguard.toml; with --user that of a user's own service manager."""

# Exit codes of the service, as in systemd.exec(5).
EXIT_FAILURE = 1
EXIT_NOTCONFIGURED = 6
STATUS_S = 0.2  # each status line costs PID 1 a round of signals
SETTLE_S = 5.0  # for starts under way when we stop


class Fatal(Exception):
    """The daemon cannot run; `code` is its exit code."""

    def __init__(self, text: str, code: int = EXIT_FAILURE) -> None:
        super().__init__(text)
        self.code = code


class Daemon:
    """The running guard."""

    def __init__(self, journal: Journal) -> None:
        self.notifier = Notifier()
        self.queue = Queue(paths.DATABASE)
        self.parts = parts = Parts(self.queue, journal)
        self.events = parts.events
        self.policy, self.monitor, self.ledger = parts.policy, parts.monitor, parts.ledger
        self.scopes, self.residents = parts.scopes, parts.residents
        self.dispatcher = parts.dispatcher
        self.acceptor, self.scheduler, self.sleeper = parts.acceptor, parts.scheduler, parts.sleeper
        parts.pumped.subscribe(self._changed)
        self.queue.damaged.subscribe(self._damaged)
        self.readback = parts.readback
        self.endpoint = Endpoint(
            parts.policy, parts.residents, parts.done_tracker, self.acceptor, self.notifier
        )
        self.views = Views(
            parts.policy, parts.live, parts.scopes, parts.gate, parts.backlog, parts.held, parts.ledger,
            parts.monitor,
        )  # fmt: skip
        self.shown = Status(parts.policy, parts.gate, parts.backlog, parts.queue, parts.monitor, self.views)
        self.metrics = Metrics(
            parts.policy, parts.live, parts.gate, parts.backlog, parts.held, parts.ledger, parts.monitor,
            parts.counters,
        )  # fmt: skip
        self.reporter = Reporter(parts.queue, parts.recorder.timeline, self.status)
        pages = Pages(parts.policy, self.reporter, parts.control)
        self.web = WebEndpoint(pages, self.metrics)
        self.device = Device(None, None, "not resolved yet")
        self._stop = asyncio.Event()
        self._failure: str | None = None
        self._problems: list[dict[str, Any]] = []
        self._status_due = False
        self._reload_failed = False
        self._reloading = asyncio.Lock()

    async def run(self) -> None:
        """Run until told to stop. Raises Fatal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        await thaw_left()
        try:
            config = await asyncio.to_thread(load)
        except ConfigError as error:
            raise Fatal(f"invalid configuration:\n{error}", EXIT_NOTCONFIGURED) from error
        self._watch()
        try:
            listener = await open_queue(self.queue, self.notifier, self._stop)
            await self.parts.settings.load()
            if self.queue.notice:
                log.critical("%s", self.queue.notice)
                self._problems.append({"code": "queue_damaged", "text": self.queue.notice})
            await self.residents.use(config)
            self.policy.config = config
            self.queue.keep_history(config.history_rows)
            await self._look_at_device(config)
            await self.scopes.open()
            self.monitor.start(self.device)
            self._follow_units(config)
            await self.parts.routes.start(config)  # instructions go with what is posted
            await self.parts.recovery.run()
            self.dispatcher.open()
            await self.parts.held.start()
            self.sleeper.start()
            await self.scheduler.start()
        except (Unavailable, SchemaTooNew, SystemdError, SystemdLost) as error:
            raise Fatal(str(error)) from error
        except Stopped:
            return

        server = Server(self._app(), LOCAL)
        await server.start(listener or listen(paths.SOCKET))
        await self.endpoint.start(config.events_listen)
        await self.web.start(config.web_listen)
        await self._lock_memory()
        self.notifier.send("READY=1", f"STATUS={self._status_line()}")
        await self._stop.wait()
        self.notifier.send("STOPPING=1")
        self.dispatcher.close()
        self.parts.rows.close()
        self.scheduler.close()
        self.sleeper.close()
        await self.monitor.close()
        self.parts.held.close()
        await self.parts.routes.close()
        server.end()
        await self.endpoint.close()
        await self.web.close()
        await self.residents.close()
        await asyncio.gather(self.parts.tasks.settled(SETTLE_S), self.parts.accepting.settled(SETTLE_S))
        await self.scopes.close()
        await self.queue.close()
        if self._failure is not None:
            raise Fatal(self._failure)

    def _app(self) -> Starlette:
        """The API on the unix socket."""
        parts, views, waiting = self.parts, self.views, Waiting(self.parts.live, self.parts.ledger.waiters)
        return make_app(
            Deliveries(
                parts.policy, self.acceptor, parts.queue, parts.backlog, waiting, parts.deliveries, views
            ),
            Turns(
                parts.policy, self.acceptor, parts.queue, parts.live, parts.scopes, parts.run_clients,
                waiting, parts.control, parts.deliveries, views,
            ),
            Minds(parts.policy, parts.settings, self.sleeper, parts.routes, views),
            Schedules(parts.policy, self.scheduler, views),
            Operator(parts.policy, parts.control, parts.recent, self.status, self.reload),
            Pressure(parts.monitor, parts.gate),
            self.metrics,
            self.reporter,
        )  # fmt: skip

    async def reload(self) -> None:
        """Read the configuration again; a bad one is refused whole. Raises ConfigError."""
        async with self._reloading:
            self.notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                config = await asyncio.to_thread(load)
            except ConfigError as error:
                log.error("the new configuration is rejected and the running one kept:\n%s", error)
                self._reload_failed = True
                self.notifier.send("READY=1", f"STATUS={self._status_line()}")
                raise
            self._reload_failed = False
            await self.residents.use(config)
            await self._lock_memory()
            self.policy.config = config
            self.queue.keep_history(config.history_rows)
            await self._look_at_device(config)
            self.monitor.use(self.device)
            self._follow_units(config)
            await self.endpoint.reload(config.events_listen)
            await self.web.reload(config.web_listen)
            await self.parts.routes.reload(config)
            self.parts.held.reload()
            await self.scheduler.reload()
            self.events.emit(
                Event.RELOADED, f"configuration read again: {', '.join(config.sources) or 'none'}"
            )
            self.parts.control.redrive()
            self.notifier.send("READY=1", f"STATUS={self._status_line()}")

    def _follow_units(self, config: Config) -> None:
        minds = config.minds.values()
        self.parts.systemd.followed = frozenset(mind.unit for mind in minds if mind.unit is not None)

    def status(self) -> dict[str, Any]:
        """The body of GET /v1/status."""
        problems = list(self._problems)
        if self.endpoint.problem is not None:
            problems.append({"code": "minds_endpoint", "text": self.endpoint.problem})
        if self.web.problem is not None:
            problems.append({"code": "web_endpoint", "text": self.web.problem})
        if self._reload_failed:
            text = "the last reload failed; the earlier configuration is in effect: hostguard config check"
            problems.append({"code": "reload_failed", "text": text})
        return self.shown.page(self.device, problems, self.readback.verdicts)

    async def _look_at_device(self, config: Config) -> None:
        self.device = await asyncio.to_thread(choose, config.device_path, paths.STATE)
        self.scopes.device, self.scopes.disk = self.device.node, self.device.name
        log.info("device: %s: %s", self.device.node or "none", self.device.reason)
        await self.readback.configure(config, self.device)

    async def _lock_memory(self) -> None:
        try:
            await asyncio.to_thread(mlock.lock)
        except OSError as error:
            text = "memory is not locked (%s): while the disk stalls, the guard may stall, too"
            log.warning(text, error.strerror)

    def _on_hangup(self) -> None:
        async def attempt() -> None:
            with contextlib.suppress(ConfigError):  # said already
                await self.reload()

        self._reload_task = asyncio.create_task(attempt())

    def _changed(self, _: Pumped) -> None:
        """Many changes within STATUS_S make one status line."""
        self.monitor.poke()
        if not self._status_due:
            self._status_due = True
            asyncio.get_running_loop().call_later(STATUS_S, self._tell_status)

    def _tell_status(self) -> None:
        self._status_due = False
        if self.dispatcher.ready:
            self.notifier.status(self._status_line())

    def _status_line(self) -> str:
        line = self.shown.line()
        return f"{line}; the last reload failed: hostguard config check" if self._reload_failed else line

    def _watch(self) -> None:
        seconds = watchdog_s()
        if seconds is not None:
            self.notifier.send("WATCHDOG=1")
            asyncio.get_running_loop().call_later(seconds, self._watch)

    def _damaged(self, damaged: QueueDamaged) -> None:
        """The next start checks the file and moves it aside; going on would spread the damage."""
        self._failure = f"{damaged.text}; stopping, the next start moves the file aside"
        self._stop.set()


def take_lock() -> int:
    """Take the gate lock for the life of the process; the fd. Raises Fatal: one guard per host."""
    fd = os.open(paths.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + 5  # a daemonless `hostguard run` holds it while it starts its scope
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                raise Fatal(f"another hostguardd runs on this host (it holds {paths.LOCK})") from None
            time.sleep(0.05)


def main() -> None:
    """Entry point of hostguardd."""
    if sys.argv[1:] == ["--version"]:
        print(f"hostguardd {__version__}")
        return
    if sys.argv[1:] == ["--user"]:
        if not paths.USER:  # the paths are settled by now: begin again
            os.execve(sys.executable, sys.orig_argv, {**os.environ, paths.USER_MANAGER: "1"})  # noqa: S606
    elif sys.argv[1:]:
        asked = sys.argv[1:] == ["--help"]
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    os.umask(0o077)
    journal = Journal("hostguardd")
    take_over(journal)
    try:
        paths.RUNTIME.mkdir(mode=0o755, parents=True, exist_ok=True)
        paths.RUNTIME.chmod(0o755)
        paths.TURNS.mkdir(mode=0o700, exist_ok=True)
        paths.STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
        take_lock()
        asyncio.run(Daemon(journal).run())
    except Fatal as error:
        log.critical("%s", error)
        print(f"hostguardd: {error}", file=sys.stderr)
        sys.exit(error.code)
    except OSError as error:
        log.critical("%s", error)
        print(f"hostguardd: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILURE)

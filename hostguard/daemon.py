"""The composition root: builds the parts, subscribes to their signals, starts and stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from hostguard.api.app import Operator, Status, make_app
from hostguard.api.deliveries import Deliveries
from hostguard.api.http import Budget
from hostguard.api.metrics import Metrics
from hostguard.api.minds import Minds
from hostguard.api.pressure import Pressure
from hostguard.api.schedules import Schedules
from hostguard.api.server import LOCAL, Server, listen
from hostguard.api.standby import Standby, Stopped, claim, obstacle
from hostguard.api.turns import Turns
from hostguard.api.views import Views
from hostguard.api.volute import Endpoint
from hostguard.api.web import Pages, Reports, WebEndpoint
from hostguard.config.load import load_on_host
from hostguard.config.users import publish
from hostguard.core import paths, signals
from hostguard.core.clock import Clock
from hostguard.core.errors import ConfigError, Problem
from hostguard.core.model import Config
from hostguard.core.signals import Signal
from hostguard.core.tasks import Tasks
from hostguard.delivery.acceptor import Acceptor
from hostguard.delivery.batcher import Batcher
from hostguard.delivery.held_back import HeldBack
from hostguard.delivery.mind_services import MindServices
from hostguard.delivery.quarantine import Quarantine
from hostguard.delivery.route_files import RouteFiles
from hostguard.delivery.schedules import Scheduler
from hostguard.delivery.sleep import Sleeper
from hostguard.gate.backlog import Backlog
from hostguard.gate.broken_minds import BrokenMinds
from hostguard.gate.control import Control, DeliveryControl
from hostguard.gate.dispatcher import Dispatcher
from hostguard.gate.gate import BacklogRows, Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import Policy, boot_id
from hostguard.gate.recovery import Recovery
from hostguard.gate.run_clients import RunClients
from hostguard.gate.shutdown import leave_mark
from hostguard.gate.starter import Starter
from hostguard.gate.waits import Waits
from hostguard.linux import mlock
from hostguard.linux.disk import UNKNOWN, choose
from hostguard.linux.durable import NOT_DURABLE, doubt
from hostguard.linux.sockets import Marked
from hostguard.pressure.freezer import Freezer, thaw_left
from hostguard.pressure.monitor import Monitor
from hostguard.pressure.throttle import Throttle
from hostguard.store import failures
from hostguard.store.requests import Waiters
from hostguard.store.settings import SettingsStore
from hostguard.store.slow_check import check_slowly
from hostguard.store.writer import Queue, Unavailable
from hostguard.systemd.client import Systemd
from hostguard.systemd.file_reader import FileReader
from hostguard.systemd.fork_client import ForkClient
from hostguard.systemd.journal import Journal, take_over
from hostguard.systemd.notify import Notifier
from hostguard.telemetry.counters import Counters
from hostguard.telemetry.events import Event, Events, RecentEvents, to_journal
from hostguard.telemetry.health import Health
from hostguard.telemetry.problems import of_schedules
from hostguard.telemetry.timeline_recorder import TimelineRecorder
from hostguard.turns.adoption import Adoption
from hostguard.turns.availability import Availability
from hostguard.turns.done_tracker import DoneTracker
from hostguard.turns.drivers.choice import Drivers
from hostguard.turns.drivers.exec_driver import ExecDriver
from hostguard.turns.drivers.idle_watch import IdleWatch
from hostguard.turns.drivers.resident_driver import ResidentDriver
from hostguard.turns.drivers.run_driver import RunDriver
from hostguard.turns.drivers.unscoped import Unscoped
from hostguard.turns.limit_check import Readback
from hostguard.turns.live import Live, TurnEnded
from hostguard.turns.mind_client import MindClient
from hostguard.turns.outside import Outside
from hostguard.turns.scopes import Scopes

if TYPE_CHECKING:
    from hostguard.front.front import Front

log = logging.getLogger("hostguard")

EXIT_FAILURE = 1  # of the service, as in systemd.exec(5)
SETTLE_S = 5.0  # for starts under way when we stop


class Parts:
    """The guard's parts, put together: nothing runs yet. Tests have the same, some of them fakes."""

    def __init__(self, queue: Queue, journal: Journal, clock: Clock) -> None:
        redrive, session_changed = Signal[signals.Redrive](), Signal[signals.SessionChanged]()
        turn_ended, rows_stored = Signal[TurnEnded](), Signal[signals.RowsStored]()
        mind_died, mind_woken = Signal[signals.MindDied](), Signal[signals.MindWoken]()
        turn_thawed, slice_throttled = Signal[signals.TurnThawed](), Signal[signals.SliceThrottled]()
        unit_started, routes_changed = Signal[signals.UnitStarted](), Signal[signals.RoutesChanged]()
        routes_read, work_seen = Signal[signals.RoutesRead](), Signal[signals.WorkSeen]()
        self.redrive, self.session_changed = redrive, session_changed
        self.pumped, self.processes_moved = Signal[signals.Pumped](), Signal[signals.ProcessesMoved]()

        self.queue, self.counters, self.recent = queue, Counters(), RecentEvents()
        self.health = Health()
        self.events = events = Events(
            self.counters.take, self.health.take, self.recent.take, partial(to_journal, journal)
        )
        self.tasks, self.accepting = Tasks(expected=(Problem,)), Tasks(expected=(Problem,))
        self.settings = settings = SettingsStore(queue)
        self.policy = policy = Policy(settings, clock.boot_id)
        self.backlog, self.live = backlog, live = Backlog(), Live()
        self.run_clients, self.waiters = run_clients, waiters = RunClients(), Waiters()
        self.ledger = ledger = Ledger(queue, events, run_clients, waiters, policy, rows_stored, clock)
        self.availability, self.done_tracker = Availability(events), DoneTracker(waiters)
        self.readback, self.systemd = Readback(events), Systemd()
        self.forks, self.marked, self.unit_started = ForkClient(self.systemd), Marked(), unit_started
        systemd, forks = self.systemd, self.forks
        self.scopes = scopes = Scopes(
            live, systemd, forks, self.readback, redrive, turn_ended, unit_started, clock
        )
        self.recorder = TimelineRecorder(queue, backlog, clock)
        freezer, throttle = Freezer(live, systemd, events, turn_thawed), Throttle(systemd, slice_throttled)
        self.monitor = Monitor(
            live, systemd, policy, events, self.recorder, freezer, throttle, redrive, clock
        )
        self.routes = RouteFiles(policy, FileReader(forks), routes_changed, routes_read)
        self.gate = gate = Gate(
            policy, live, scopes, queue, self.monitor, self.availability, run_clients, backlog, self.routes,
            clock,
        )  # fmt: skip
        self.waits = waits = Waits(policy, live, backlog)
        self.rows = BacklogRows(backlog, gate, redrive, clock)
        self.broken_minds = BrokenMinds(policy, redrive)
        adoption = Adoption(systemd, scopes.cgroup, mind_died, self.processes_moved)
        self.outside = Outside(live, scopes, systemd, policy, adoption, waits, events, clock)
        self.idle_watch = IdleWatch(live, adoption, policy, freezer)
        self.residents = ResidentDriver(
            scopes, live, adoption, MindClient(systemd, self.marked), self.availability, self.done_tracker,
            ledger, self.rows, self.routes, policy, self.idle_watch, session_changed, redrive, work_seen,
            self.tasks,
        )  # fmt: skip
        self.unscoped = Unscoped(live, scopes, adoption, self.residents, policy, events, clock)
        exec_driver, run_driver = ExecDriver(scopes), RunDriver(scopes, run_clients.take)
        self.drivers = drivers = Drivers(exec_driver, run_driver, self.residents)
        self.starter = Starter(
            policy, live, scopes, drivers, ledger, self.rows, events, session_changed, self.tasks
        )
        self.dispatcher = dispatcher = Dispatcher(
            backlog, gate, self.starter, live, ledger, run_clients, self.availability, events,
            session_changed, self.pumped, clock,
        )  # fmt: skip
        self.recovery = Recovery(
            queue, ledger, backlog, live, drivers, run_clients, policy, gate, self.outside, self.tasks, clock
        )

        self.batcher = Batcher(policy, live, queue, ledger, waiters, dispatcher, self.accepting, clock)
        self.quarantine = Quarantine(
            policy, self.routes.get, queue, ledger, waiters, self.batcher, dispatcher, backlog, mind_woken,
            clock, self.accepting,
        )  # fmt: skip
        self.held = held = HeldBack(self.batcher, self.quarantine)
        self.acceptor = Acceptor(
            policy, settings, self.routes.get, held, queue, ledger, backlog, run_clients, dispatcher,
            mind_woken, self.accepting, clock,
        )  # fmt: skip
        self.scheduler = Scheduler(
            policy, settings, queue, self.acceptor, events, self.counters, self.accepting, clock.date
        )  # fmt: skip
        self.services = MindServices(policy, settings, live, systemd, unit_started, self.acceptor, redrive)
        self.sleeper = Sleeper(
            policy, settings, self.acceptor, held, backlog, live, ledger, self.services, dispatcher, events,
            clock,
        )  # fmt: skip
        self.control = Control(policy, settings, live, backlog, scopes, dispatcher, events)
        self.deliveries = DeliveryControl(
            queue, live, backlog, run_clients, ledger, waiters, held, dispatcher, self.health, policy, clock
        )

        redrive.subscribe(dispatcher.redrive)
        queue.trouble_changed.subscribe(lambda _: redrive.send(signals.Redrive()))
        queue.rows_set_aside.subscribe(dispatcher.rows_set_aside)
        work_seen.subscribe(self.unscoped.work_seen)
        turn_ended.subscribe(self.unscoped.turn_ended)
        turn_ended.subscribe(self.outside.turn_ended)  # first: it may keep the slot
        turn_ended.subscribe(dispatcher.turn_ended)
        rows_stored.subscribe(lambda stored: dispatcher.admit(stored.rows))
        unit_started.subscribe(self.residents.unit_started)
        mind_died.subscribe(self.residents.mind_died)
        turn_thawed.subscribe(self.idle_watch.thawed)
        slice_throttled.subscribe(self.readback.slice_throttled)
        routes_changed.subscribe(self.quarantine.routes_changed)
        routes_read.subscribe(self.quarantine.routes_read)
        routes_read.subscribe(lambda read: redrive.send(signals.Redrive(read.mind)))
        mind_woken.subscribe(self.sleeper.wake_for_message)
        session_changed.subscribe(self.batcher.session_changed)
        session_changed.subscribe(self.sleeper.session_changed)
        session_changed.subscribe(waits.changed)  # a message may have gone into a turn
        self.pumped.subscribe(waits.changed)
        self.pumped.subscribe(self.outside.look_later)
        self.pumped.subscribe(self.unscoped.look_later)
        self.pumped.subscribe(self.services.restart_idle)
        self.processes_moved.subscribe(waits.moved)


class Daemon:
    """The running guard."""

    def __init__(self, journal: Journal) -> None:
        self.notifier, self.queue = Notifier(), Queue(paths.DATABASE)
        clock = Clock(boot_id())
        self.parts = parts = Parts(self.queue, journal, clock)
        policy, gate, backlog, live, held = parts.policy, parts.gate, parts.backlog, parts.live, parts.held
        views = Views(
            policy, live, parts.scopes, gate, backlog, held, parts.ledger, parts.monitor, parts.health,
            parts.availability, clock,
        )  # fmt: skip
        metrics = Metrics(
            policy, live, gate, backlog, held, parts.ledger, parts.monitor, parts.counters, self.status
        )
        self.shown = Status(policy, gate, backlog, self.queue, parts.monitor, views, self.notifier, clock)
        reports = Reports(self.queue, parts.recorder.timeline, self.status)
        self.app = make_app(
            room := Budget(), Deliveries(
                policy, parts.acceptor, self.queue, backlog, parts.waiters, parts.waits, parts.deliveries,
                views),
            Turns(
                policy, parts.acceptor, self.queue, live, parts.scopes, parts.run_clients, parts.waits,
                parts.control, parts.deliveries, views),
            Minds(policy, parts.settings, parts.sleeper, parts.routes, views),
            Schedules(policy, parts.scheduler, views),
            Operator(policy, parts.control, parts.recent, self.status, self.reload),
            Pressure(parts.monitor, gate), metrics, reports,
        )  # fmt: skip
        self.endpoint = Endpoint(
            policy, parts.residents, parts.done_tracker, parts.acceptor, parts.services, self.notifier, room
        )
        self.front: Front | None = None
        self.room = room
        self.web = WebEndpoint(self.notifier, room, Pages(policy, reports, parts.control), metrics)
        self.device = UNKNOWN
        self.doubt: str | None = None  # why what is accepted may not be on a disk
        self._stop, self._claimed, self._ready = asyncio.Event(), False, False
        self._standby = Standby(self.notifier, self._stop)
        self._failure: str | None = None
        self._reloading, self._reloads = asyncio.Lock(), Tasks(expected=(ConfigError,))
        parts.pumped.subscribe(lambda _: parts.monitor.poke())
        parts.pumped.subscribe(self.shown.changed)
        self.queue.damaged.subscribe(self._damaged)

    def status(self) -> dict[str, Any]:
        """The body of GET /v1/status."""
        faults = {
            "schedule_broken": of_schedules(self.parts.scheduler.held()),
            "minds_endpoint": self.endpoint.problem,
            "web_endpoint": self.web.problem,
            "volute_front": self.front.problem if self.front is not None else None,
            "not_durable": self.doubt and NOT_DURABLE.format(self.doubt),
        }
        return self.shown.page(self.device, faults, self.parts.readback.verdicts)

    async def run(self) -> None:
        """Run until told to stop. Raises what `main` reports."""
        loop, parts = asyncio.get_running_loop(), self.parts
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        await thaw_left()
        self.notifier.feed_watchdog()
        try:
            config = await self._standby.until(self._prepare)
            try:
                server = await self._start(config)
            except Exception as error:
                parts.dispatcher.close()
                await self._standby.afresh(error)
        except Stopped:
            return
        self._ready = True
        self.notifier.send("READY=1", f"STATUS={self.shown.line()}")
        checking = Tasks()
        checking.start(check_slowly(self.queue))
        await self._stop.wait()
        checking.cancel()
        self.notifier.send("STOPPING=1")
        if await parts.scopes.going_down():
            await asyncio.to_thread(leave_mark)
        parts.dispatcher.close()
        parts.rows.close()
        parts.broken_minds.close()
        parts.scheduler.close()
        parts.sleeper.close()
        await parts.monitor.close()
        parts.held.close()
        if self.front is not None:
            await self.front.close()
        await parts.routes.close()
        server.end()
        await self.endpoint.close()
        await self.web.close()
        parts.residents.close()
        parts.outside.close()
        parts.unscoped.close()
        await asyncio.gather(
            parts.tasks.settled(SETTLE_S), parts.accepting.settled(SETTLE_S), parts.waiters.release(SETTLE_S)
        )
        await parts.scopes.close()
        await self.queue.close()
        if self._failure is not None:
            raise Unavailable(self._failure)

    async def _prepare(self) -> Config:
        """All of a start that can fail for what somebody can correct. It may be called again."""
        parts = self.parts
        if not self._claimed:
            await asyncio.to_thread(claim)
            self._claimed = True
        config = await self._configured(at_boot=True)
        if not self.queue.is_open:
            await self.queue.open()
        await parts.settings.load()
        parts.health.load(*await self.queue.read(lambda db: (failures.latest(db), failures.dead(db))))
        await self._use(config)
        await parts.scopes.open()
        if self.front is not None:
            await self.front.know()
        return config

    async def _start(self, config: Config) -> Server:
        """Match the queue with the live turns, start the next ones, and serve the API."""
        parts = self.parts
        if self.queue.notice:
            log.critical("%s", self.queue.notice)
        parts.routes.reload()
        await parts.recovery.run()
        await parts.held.start()
        parts.sleeper.start()
        await parts.scheduler.reload()
        parts.monitor.start(self.device)
        parts.dispatcher.open()
        await parts.routes.loaded()
        server = Server(self.app, LOCAL)
        await server.start(self._standby.listener or listen(paths.SOCKET))
        await self.endpoint.start(config.events_listen)
        await self.web.start(config.web_listen)
        if self.front is not None:
            self.front.start()
        await mlock.try_lock()
        return server

    @staticmethod
    async def _configured(*, at_boot: bool) -> Config:
        """The configuration as it is now, with its lists of users written. Raises ConfigError."""
        config = await asyncio.to_thread(load_on_host, at_boot=at_boot)
        await asyncio.to_thread(publish, config)
        return config

    async def _use(self, config: Config) -> None:
        """Follow the configuration, as far as a start and a reload do the same."""
        config = await self._with_volute(config)
        parts, minds = self.parts, config.minds.values()
        await parts.residents.use(config)
        parts.policy.config = config
        parts.broken_minds.follow()
        self.queue.keep_history(config.history_rows)
        self.device = device = await asyncio.to_thread(choose, config.device_path, paths.STATE)
        parts.scopes.device, parts.scopes.disk = device.node, device.name
        log.info("device: %s: %s", device.node or "none", device.reason)
        self.doubt = await asyncio.to_thread(doubt, paths.DATABASE)
        await parts.readback.configure(config, device)
        parts.systemd.followed = frozenset(unit for mind in minds if (unit := mind.unit or mind.volute))

    async def _with_volute(self, config: Config) -> Config:
        """The configuration with the minds of Volute, if the guard is in front of one."""
        if config.volute is not None and self.front is None:
            from hostguard.front.front import Front

            parts = self.parts
            self.front = await asyncio.to_thread(
                Front.make, parts.policy, parts.forks, parts.residents, parts.done_tracker, parts.acceptor,
                parts.marked, parts.redrive, self.room,
            )  # fmt: skip
            parts.unit_started.subscribe(self.front.unit_started)
        return config if self.front is None else self.front.joined(config)

    async def reload(self) -> None:
        """Read the configuration again; a bad one is refused whole. Raises ConfigError."""
        parts = self.parts
        async with self._reloading:
            self.notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                config = await self._configured(at_boot=False)
            except ConfigError as error:
                log.error("the new configuration is rejected and the running one kept:\n%s", error)
                self.shown.reload_failed = True
                self.notifier.send("READY=1", f"STATUS={self.shown.line()}")
                raise
            self.shown.reload_failed = False
            await self.queue.renew_notice()
            await self._use(config)
            if self.front is not None:
                await self.front.know()
                self.front.start()
            await mlock.try_lock()
            parts.monitor.use(self.device)
            await self.endpoint.reload(config.events_listen)
            await self.web.reload(config.web_listen)
            parts.routes.reload()
            await parts.routes.loaded()
            parts.held.reload()
            await parts.scheduler.reload()
            text = f"configuration read again: {', '.join(config.sources) or 'none'}"
            parts.events.emit(Event.RELOADED, text)
            parts.control.redrive()
            self.notifier.send("READY=1", f"STATUS={self.shown.line()}")

    def _hung_up(self) -> None:
        if self._ready:
            self._reloads.start(self.reload())
        else:
            self._standby.try_again()

    def _damaged(self, damaged: signals.QueueDamaged) -> None:
        """The next start checks the file and moves it aside; going on would spread the damage."""
        self._failure = f"{damaged.text}; stopping, the next start moves the file aside"
        self._stop.set()


def run() -> NoReturn:
    """Run the guard until it is told to stop, and exit."""
    os.umask(0o077)
    journal = Journal("hostguardd")
    take_over(journal)
    try:
        asyncio.run(Daemon(journal).run())
    except Exception as error:
        log.critical("%s", obstacle(error).text)
        print(f"hostguardd: {obstacle(error).text}", file=sys.stderr)
        sys.exit(EXIT_FAILURE)
    os._exit(0)  # all is closed; Python would take longer to take its modules apart than all of the stop

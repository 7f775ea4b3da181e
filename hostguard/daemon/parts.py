"""The composition root: builds the parts and subscribes to their signals. Nothing runs yet.

Tests build the same parts, and exchange some of them for fakes.
"""

from __future__ import annotations

from collections.abc import Callable

from hostguard.core.clock import now_ms
from hostguard.core.errors import Problem
from hostguard.core.signals import (
    MindDied,
    MindWoken,
    Pumped,
    Redrive,
    RoutesChanged,
    RowsStored,
    SessionChanged,
    Signal,
    SliceThrottled,
    TurnThawed,
    UnitStarted,
)
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
from hostguard.gate.control import Control, DeliveryControl
from hostguard.gate.dispatcher import Dispatcher
from hostguard.gate.drivers import Drivers
from hostguard.gate.gate import Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import Policy, boot_id
from hostguard.gate.recovery import Recovery
from hostguard.gate.row_source import BacklogRows
from hostguard.gate.run_clients import RunClients
from hostguard.gate.starter import Starter
from hostguard.pressure.freezer import Freezer
from hostguard.pressure.monitor import Monitor
from hostguard.pressure.throttle import Throttle
from hostguard.store.settings import SettingsStore
from hostguard.store.waiters import Waiters
from hostguard.store.writer import Queue
from hostguard.systemd.client import Systemd
from hostguard.systemd.fork_client import ForkClient
from hostguard.systemd.journal import Journal
from hostguard.telemetry.counters import Counters
from hostguard.telemetry.events import Events, JournalSink, RecentEvents
from hostguard.telemetry.timeline_recorder import TimelineRecorder
from hostguard.turns.adoption import Adoption
from hostguard.turns.availability import Availability
from hostguard.turns.done_tracker import DoneTracker
from hostguard.turns.exec_driver import ExecDriver
from hostguard.turns.idle_watch import IdleWatch
from hostguard.turns.limit_check import Readback
from hostguard.turns.live import Live, TurnEnded
from hostguard.turns.mind_client import MindClient
from hostguard.turns.resident_driver import ResidentDriver
from hostguard.turns.run_driver import RunDriver
from hostguard.turns.scopes import Scopes


class Parts:
    """The guard's parts, put together: nothing runs yet. Tests have the same, some of them fakes."""

    def __init__(self, queue: Queue, journal: Journal, clock: Callable[[], int] = now_ms) -> None:
        self.counters, self.recent = Counters(), RecentEvents()
        self.queue, self.events = queue, Events(self.counters, self.recent, JournalSink(journal))
        events = self.events
        self.redrive = redrive = Signal[Redrive]()
        self.pumped = Signal[Pumped]()
        self.session_changed = session_changed = Signal[SessionChanged]()
        turn_ended, rows_stored = Signal[TurnEnded](), Signal[RowsStored]()
        mind_died = Signal[MindDied]()
        self.unit_started = unit_started = Signal[UnitStarted]()
        turn_thawed, slice_throttled = Signal[TurnThawed](), Signal[SliceThrottled]()
        self.tasks = Tasks(expected=(Problem,))
        self.settings = SettingsStore(queue)
        self.policy = policy = Policy(self.settings, boot_id())
        self.backlog = backlog = Backlog()
        self.live = live = Live()
        self.run_clients = run_clients = RunClients()
        self.waiters = Waiters()
        self.ledger = Ledger(queue, events, run_clients, self.waiters, policy, rows_stored)
        self.availability = availability = Availability()
        self.done_tracker = DoneTracker(self.waiters)
        self.readback = Readback(events)
        self.systemd = systemd = Systemd()
        self.scopes = scopes = Scopes(
            live, systemd, ForkClient(systemd), self.readback, redrive, turn_ended, unit_started
        )
        self.recorder = TimelineRecorder(queue, backlog)
        freezer = Freezer(live, systemd, events, turn_thawed)
        throttle = Throttle(systemd, slice_throttled)
        self.monitor = Monitor(live, systemd, policy, events, self.recorder, freezer, throttle, redrive)
        self.gate = Gate(policy, live, scopes, queue, self.monitor, availability, run_clients)
        self.rows = BacklogRows(backlog, self.gate, redrive)
        self.routes_changed = Signal[RoutesChanged]()
        self.routes = RouteFiles(self.routes_changed)
        adoption = Adoption(systemd, scopes.cgroup, mind_died)
        self.idle_watch = IdleWatch(live, adoption, policy, freezer)
        self.residents = ResidentDriver(
            scopes, live, adoption, MindClient(), availability, self.done_tracker, self.ledger, self.rows,
            self.routes, policy, self.idle_watch, session_changed, redrive, self.tasks,
        )  # fmt: skip
        self.drivers = Drivers(ExecDriver(scopes), RunDriver(scopes, run_clients), self.residents)
        self.starter = Starter(
            policy, live, scopes, self.drivers, self.ledger, self.rows, events, session_changed, self.tasks
        )
        self.dispatcher = dispatcher = Dispatcher(
            backlog, self.gate, self.starter, live, self.ledger, run_clients, availability, events,
            session_changed, self.pumped,
        )  # fmt: skip
        self.recovery = Recovery(
            queue, self.ledger, backlog, live, self.drivers, run_clients, policy, self.tasks
        )
        redrive.subscribe(dispatcher.redrive)
        queue.trouble_changed.subscribe(lambda _: redrive.send(Redrive()))
        turn_ended.subscribe(dispatcher.turn_ended)
        rows_stored.subscribe(dispatcher.rows_stored)
        unit_started.subscribe(self._try_mind)
        mind_died.subscribe(self.residents.mind_died)
        turn_thawed.subscribe(self.idle_watch.thawed)
        slice_throttled.subscribe(self.readback.slice_throttled)
        self._put_delivery_together(clock)

    def _put_delivery_together(self, clock: Callable[[], int]) -> None:
        policy, settings, live, ledger = self.policy, self.settings, self.live, self.ledger
        queue, dispatcher = self.queue, self.dispatcher
        tasks = self.accepting = Tasks((Problem,))
        mind_woken = Signal[MindWoken]()
        self.batcher = Batcher(policy, live, queue, ledger, ledger.waiters, dispatcher, tasks)
        self.quarantine = Quarantine(
            policy, self.routes.get, queue, ledger, ledger.waiters, self.batcher, dispatcher, tasks
        )
        self.held = HeldBack(self.batcher, self.quarantine)
        self.acceptor = Acceptor(
            policy, settings, self.routes.get, self.held, queue, ledger, self.backlog, self.run_clients,
            dispatcher, mind_woken, tasks,
        )  # fmt: skip
        self.scheduler = Scheduler(policy, settings, self.acceptor, self.events, tasks, clock)
        self.services = MindServices(policy, settings, live, self.systemd, self.unit_started)
        self.sleeper = Sleeper(
            policy, settings, self.acceptor, self.held, self.backlog, live, ledger, self.services, dispatcher,
            self.events, clock,
        )  # fmt: skip
        self.control = Control(policy, settings, live, self.backlog, self.scopes, dispatcher, self.events)
        self.deliveries = DeliveryControl(
            queue, live, self.backlog, self.run_clients, ledger, ledger.waiters, self.gate, self.held,
            dispatcher,
        )  # fmt: skip
        self.routes_changed.subscribe(self.quarantine.routes_changed)
        mind_woken.subscribe(self.sleeper.wake_for_message)
        self.session_changed.subscribe(self.batcher.session_changed)
        self.session_changed.subscribe(self.sleeper.session_changed)

    def _try_mind(self, started: UnitStarted) -> None:
        for mind in self.policy.config.minds.values():
            if mind.unit == started.unit:
                self.residents.up(mind.name)

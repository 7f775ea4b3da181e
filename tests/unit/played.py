"""A manager whose turns start at once and end when the test says so. Only systemd is played."""

from __future__ import annotations

from onqueue import on_queue
from set_clock import SetClock

from hostguard.api.views import Views
from hostguard.core import outcome
from hostguard.core.model import Config, Mind
from hostguard.daemon import Parts
from hostguard.delivery.route_files import _File
from hostguard.gate.dispatcher import Dispatcher
from hostguard.systemd.journal import Journal
from hostguard.turns.live import Phase

MINDS = ("a", "b", "c")


CONFIG = Config(minds={name: Mind(name, ("/bin/true",)) for name in MINDS})


class Silent(Journal):
    """Nothing is written: thousands of entries would be."""

    def __init__(self) -> None:
        pass

    def send(self, *_: object, **__: object) -> None:
        pass


class Played:
    """A driver whose turns start at once and end when the test says so."""

    takes_input = False

    def __init__(self, scopes) -> None:
        self._scopes = scopes

    def prepare(self, turn) -> bool:
        return True

    async def start(self, turn, mind, row, raw) -> bool:
        if turn.revoked:
            self._scopes.give_up(turn, outcome.Ending("dismissed", "paused", back=True))
            return False
        turn.phase = Phase.RUNNING
        return True

    def feed(self, turn) -> None:
        pass


def parts(queue, config=CONFIG, settings=None, journal=None, clock=None) -> Parts:
    """The guard's parts on an open queue. systemd counts as connected, though it is not."""
    found = Parts(queue, journal or Silent(), clock or SetClock())
    for name in (
        "queue",
        "events",
        "policy",
        "settings",
        "backlog",
        "ledger",
        "live",
        "gate",
        "tasks",
        "residents",
    ):
        setattr(found.dispatcher, name, getattr(found, name))  # for tests that have the dispatcher alone
    found.dispatcher.parts, found.dispatcher.watcher = found, found.monitor
    found.dispatcher.runner, found.dispatcher.callers = found.scopes, found.run_clients
    found.dispatcher._tasks, found.dispatcher.settled = found.tasks._tasks, found.tasks.settled
    found.dispatcher.verdict, found.scopes.live = found.gate.hold, found.live
    found.policy.config = config
    minds = config.minds.values()
    found.routes._files = {mind.name: _File(mind.routes, mind.uid, None) for mind in minds if mind.routes}
    found.settings.use(*(settings or {}).items())
    found.scopes.connected = True
    return found


def managed(queue, config=CONFIG, settings=None, journal=None, clock=None) -> Dispatcher:
    """A dispatcher that could start turns, but for systemd."""
    return parts(queue, config, settings, journal, clock).dispatcher


def sink(manager, kind):
    """The sink of this kind that the dispatcher's events go to."""
    owners = (getattr(take, "__self__", None) for take in manager.events.sinks)
    return next(one for one in owners if isinstance(one, kind))


def views_of(manager) -> Views:
    """What the API shows of a dispatcher and its parts."""
    return Views(
        manager.policy, manager.live, manager.runner, manager.gate, manager.backlog, manager.parts.held,
        manager.ledger, manager.watcher, manager.parts.health, manager.parts.availability,
        manager.parts.recovery._clock,
    )  # fmt: skip


def playing(queue, config=CONFIG, settings=None, clock=None) -> Dispatcher:
    """A dispatcher whose turns are played."""
    found = parts(queue, config, settings, clock=clock)
    found.drivers.exec = found.drivers.run = found.drivers.resident = Played(found.scopes)
    found.scopes.end = found.scopes.free
    return found.dispatcher


def on_manager(path, work, config=CONFIG):
    """Run `await work(manager)` on a real queue in `path`, with turns that end when the test says so."""

    async def run(queue):
        manager = playing(queue, config)
        manager.ready = True
        await work(manager)

    on_queue(path, run)


OK = outcome.Ending("exited", "exit status 0", 0)


CRASH = outcome.Ending("killed", "died of SIGSEGV", 139, failed=True)


EXIT_3 = outcome.Ending("exited", "exit status 3", 3)

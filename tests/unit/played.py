"""A manager whose turns start at once and end when the test says so. Only systemd is played."""

from __future__ import annotations

from onqueue import on_queue

from hostguard.core import outcome
from hostguard.core.model import Config, Mind
from hostguard.gate.dispatcher import Dispatcher
from hostguard.gate.policy import Policy
from hostguard.systemd.journal import Journal
from hostguard.telemetry.events import Events
from hostguard.turns.live import Live, Phase

MINDS = ("a", "b", "c")


CONFIG = Config(minds={name: Mind(name, ("/bin/true",)) for name in MINDS})


class Silent(Journal):
    """Nothing is written: thousands of entries would be."""

    def __init__(self) -> None:
        pass

    def send(self, *_: object, **__: object) -> None:
        pass


class Played:
    """Turns that start at once and end when the test says so. What hostguard.turns.scopes does on real scopes."""

    def __init__(self, over) -> None:
        self.live = Live()
        self.connected = True
        self._over = over

    def begin_record(self, turn) -> bool:
        return True

    async def start_exec(self, turn, mind, work) -> bool:
        if turn.revoked:
            self.end(turn, outcome.Ending("dismissed", "paused", back=True))
            return False
        turn.phase = Phase.RUNNING
        return True

    def end(self, turn, ending) -> None:
        if self.live.remove(turn):
            self._over(turn, ending)

    give_up = end


def on_manager(path, work, config=CONFIG):
    """Run `await work(manager)` on a real queue in `path`, with turns that end when the test says so."""

    async def managed(queue):
        manager = Dispatcher(queue, Events(Silent()), lambda: None)
        manager.policy = Policy(config, {}, "boot")
        manager.runner = Played(manager._over)
        manager.ready = True
        await work(manager)

    on_queue(path, managed)


OK = outcome.Ending("exited", "exit status 0", 0)


CRASH = outcome.Ending("killed", "died of SIGSEGV", 139, failed=True)

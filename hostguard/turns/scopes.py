"""Turns on their way: brings scopes up, follows them, and says once, for each, that it is over.

What is live is kept in `live`. A slot comes free only here, and only on evidence: the scope is gone, its
cgroup is empty, or it never came up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hostguard.core import outcome, units
from hostguard.core.model import Kind, Limits, LiveTurn, Mind, Work
from hostguard.core.outcome import Usage
from hostguard.core.signals import Redrive, Signal, UnitStarted
from hostguard.linux import cgroup as cgroups
from hostguard.linux.usage import of_scope
from hostguard.systemd.client import Scope, Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.systemd.fork_client import ForkClient, Stub, anchor, release
from hostguard.turns import exit_record
from hostguard.turns.live import Live, Phase, Turn, TurnEnded
from hostguard.turns.scope_reaper import ScopeReaper

log = logging.getLogger(__name__)

AGAIN_MS = 1_000  # out of descriptors or processes: look again after this


class LimitCheck(Protocol):
    """Is shown each turn's cgroup before the turn runs."""

    async def look(self, cgroup: Path, limits: Limits) -> None:
        """Read back which limits the kernel applies to it."""


class Scopes:
    """Starts and follows turns."""

    def __init__(
        self,
        live: Live,
        limit_check: LimitCheck,
        redrive: Signal[Redrive],
        turn_ended: Signal[TurnEnded],
        unit_started: Signal[UnitStarted],
    ) -> None:
        self.live = live
        self.systemd = Systemd(self)
        self.connected = False
        self.device: str | None = None  # block device node for per-device limits
        self.disk: str | None = None  # the kernel's name of the same
        self._redrive = redrive
        self._turn_ended = turn_ended
        self._unit_started = unit_started
        self._limit_check = limit_check
        self.spawner = ForkClient(self.systemd)
        self._watch = cgroups.Watch(self._emptied)
        self._leaving = ScopeReaper(self.systemd, self._has_processes)
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect to systemd and have processes ready. Raises SystemdError, SystemdLost, OSError."""
        self._watch.open()
        await self.systemd.start()
        await self.spawner.start()

    async def close(self) -> None:
        """Let go of everything; scopes are left running."""
        self._watch.close()
        self._leaving.close()
        await self.systemd.close()
        self.spawner.close()

    def cgroup(self, unit: str, mind: str) -> Path:
        """The cgroup folder of a turn's scope."""
        slices = cgroups.ROOT / self.systemd.control_group.lstrip("/") / units.SLICE
        return slices / units.mind_slice(mind) / unit if mind else slices / unit

    # -- starting

    async def start_exec(self, turn: Turn, mind: Mind, work: Work) -> bool:
        """Bring the turn's scope up with a stub inside, and let the stub run the command.

        False if nothing was run: the turn's end says why.
        """
        cgroup = self.cgroup(turn.live.unit, mind.name)
        return await self._start_stub(
            turn, mind, False, lambda stub, turn_id: release(stub, mind, work, turn_id, cgroup)
        )

    async def start_anchor(self, turn: Turn, mind: Mind) -> bool:
        """Bring the scope of a resident mind's turn up around a stub that only waits. False as above."""
        return await self._start_stub(turn, mind, True, anchor)

    async def _start_stub(
        self, turn: Turn, mind: Mind, delegate: bool, let_go: Callable[[Stub, str], None]
    ) -> bool:
        assert turn.live.id is not None
        try:
            turn.stub = stub = await self.spawner.take()
        except OSError as error:
            self._cannot_start(turn, error)
            return False
        turn.pid = stub.pid
        turn.begun = time.monotonic()
        if not await self._bring_up(turn, mind.limits, delegate):
            return False
        turn.phase = Phase.RUNNING
        asyncio.get_running_loop().add_reader(stub.pidfd, self._stub_ended, turn)
        if not (turn.revoked or turn.asked):
            try:
                let_go(stub, turn.live.id)
                turn.released = True
                return True
            except OSError as error:
                log.warning("%s is not let run: %s", turn.live.unit, error)
        stub.dismiss()  # its end follows: a turn that never ran
        return False

    def begin_record(self, turn: Turn) -> bool:
        """Make the record of a turn that is about to start. False if it cannot be made."""
        assert turn.live.id is not None
        try:
            exit_record.begin_record(turn.live.id)
        except OSError as error:
            log.error("%s: its record cannot be made: %s", turn.live.unit, error)
            return False
        return True

    def _cannot_start(self, turn: Turn, error: OSError) -> None:
        """Free the slot of a turn that the host, not its mind, keeps from starting; it is tried again."""
        reason = f"the guard cannot start a process: {error}"
        log.error("%s: %s", turn.live.unit, reason)
        self.give_up(turn, outcome.Ending("dismissed", reason, back=True, pause_ms=AGAIN_MS))

    async def start_run(self, turn: Turn, limits: Limits, pid: int) -> bool:
        """Bring the turn's scope up around a waiting `hostguard run`. False if its command is not to run."""
        turn.pid = pid
        if not await self._bring_up(turn, limits, False):
            return False
        turn.phase = Phase.RUNNING
        self.watch(turn)
        return not turn.asked

    def watch(self, turn: Turn) -> None:
        """Follow a turn whose process is not our own stub."""
        self._watch.add(turn.live.unit, self.cgroup(turn.live.unit, turn.live.mind))

    async def _bring_up(self, turn: Turn, limits: Limits, delegate: bool) -> bool:
        unit = turn.live.unit
        assert turn.pid is not None
        properties = units.scope_properties(
            turn.live.mind, turn.description, limits, self.device, [turn.pid], delegate
        )
        try:
            await self._leaving.start_scope(unit, properties)
        except SystemdError as error:
            self.give_up(turn, outcome.Ending("not_started", f"systemd: {error}", failed=True))
            return False
        except SystemdLost as error:
            # The scope may still come up: the slot stays taken until systemd's list shows the truth.
            log.warning("%s: %s", unit, error)
            self._dismiss(turn)
            turn.phase = Phase.UNSURE
            if self.connected:
                self._spawn(self._refresh())
            return False
        await self._limit_check.look(self.cgroup(unit, turn.live.mind), limits)
        # The word may have been of an earlier turn of this name: a row that is tried again by request.
        if turn.gone and not cgroups.populated(self.cgroup(unit, turn.live.mind)):
            self._dismiss(turn)
            self._ended(turn)
            return False
        return True

    def _dismiss(self, turn: Turn) -> None:
        if turn.stub is not None:
            turn.stub.dismiss()

    def _stub_ended(self, turn: Turn) -> None:
        self._unfollow(turn)
        if cgroups.populated(self.cgroup(turn.live.unit, turn.live.mind)):
            turn.phase = Phase.LINGERING
            self.watch(turn)
        else:
            self._ended(turn)

    def _unfollow(self, turn: Turn) -> None:
        if turn.stub is not None:
            asyncio.get_running_loop().remove_reader(turn.stub.pidfd)
            turn.stub.close()
            turn.stub = None

    # -- ending

    def ending_of(self, turn: Turn) -> outcome.Ending:
        """How a turn whose scope is gone ended. Raises OSError if its record cannot be read now."""
        if turn.delivery is None or turn.live.id is None:
            return outcome.Ending("exited", "the scope is gone")
        if turn.delivery.kind is Kind.RUN:
            return outcome.Ending("stopped" if turn.stopped else "exited", "the caller's command ended")
        turn.record = exit_record.read_record(turn.live.id)
        if turn.resident is not None and turn.resident.ending is not None:
            return turn.resident.ending
        if turn.record is None and turn.released:
            return outcome.Ending("exited", "its exit record was removed: how it ended is not known")
        # An earlier guard's turn is timed by the wall clock, which is all that was stored.
        ran_s = time.time() - turn.since / 1000 if turn.begun is None else time.monotonic() - turn.begun
        if turn.resident is not None:
            posted, ours = turn.resident.posted, turn.begun is not None
            return outcome.resident_ending(turn.record, turn.stopped, ran_s, turn.max_turn, posted, ours)
        ending = outcome.ending(turn.record, turn.stopped, ran_s, turn.max_turn, turn.delivery.kind)
        return outcome.NEVER_BEGAN if ending.back and turn.asked else ending

    def _ended(self, turn: Turn) -> None:
        """The turn has no process any more."""
        try:
            ending = self.ending_of(turn)
        except OSError as error:
            log.error("%s: its record cannot be read: %s; trying again", turn.live.unit, error)
            asyncio.get_running_loop().call_later(AGAIN_MS / 1000, self._ended, turn)
        else:
            self._over(turn, ending)

    def _over(self, turn: Turn, ending: outcome.Ending) -> None:
        if self.live.remove(turn):
            self._watch.remove(turn.live.unit)
            self._unfollow(turn)
            if turn.live.id is not None:
                self._leaving.add(turn.live.unit)
            self.account(turn)
            self._turn_ended.send(TurnEnded(turn, ending))

    def usage(self, turn: Turn) -> Usage:
        """What the turn has used by now."""
        return of_scope(self.cgroup(turn.live.unit, turn.live.mind), self.disk)

    def account(self, turn: Turn) -> None:
        """Read what the turn used, while its scope is there, if that is not known and no record tells."""
        if turn.used is None and turn.delivery and not (turn.record and turn.record.account):
            turn.used = self.usage(turn)

    def give_up(self, turn: Turn, ending: outcome.Ending) -> None:
        """Free the slot of a turn that is not brought up after all. Asked to stop, it does not come again."""
        self._dismiss(turn)
        self._over(turn, outcome.NEVER_BEGAN if turn.asked else ending)

    def owns(self, pid: int) -> bool:
        """Whether a live turn was started around this very process."""
        return any(turn.pid == pid for turn in self.live)

    async def stop(self, turn: Turn) -> None:
        """Ask systemd to stop the turn's scope. Raises SystemdError, SystemdLost.

        One that is still being started is not let run once its scope is up: a stop of the scope now would
        either find none, or make its start a failure, which is tried again.
        """
        turn.stopped = turn.asked = True
        self.live.close_input(turn)
        if turn.phase is Phase.STARTING:
            return
        with suppress(SystemdError):  # it is gone
            await self.systemd.thaw(turn.live.unit)  # since version 255 systemd stops nothing that is frozen
        await self.systemd.stop_unit(turn.live.unit)

    # -- what systemd tells

    def systemd_up(self, scopes: Sequence[Scope]) -> None:
        """The list: scopes that we do not know take a slot, slots without a scope come free."""
        self.connected = True
        for scope in scopes:
            if self._has_processes(scope.unit, scope.mind):
                self._take(scope)
            elif scope.unit not in self.live.turns and units.parse_turn_unit(scope.unit):
                self._leaving.add(scope.unit)
        for turn in self.live:
            if turn.phase is not Phase.STARTING:
                self.scope_gone(turn.live.unit)
        self._redrive.send(Redrive())

    def systemd_down(self) -> None:
        """Nothing is started until systemd is back."""
        self.connected = False
        log.warning("lost the connection to systemd; nothing is started until it is back")

    def scope_new(self, scope: Scope) -> None:
        """A scope of somebody else's takes a slot, too."""
        if scope.unit not in self.live.turns:
            self._take(scope)
            self._redrive.send(Redrive())

    def _take(self, scope: Scope) -> None:
        if scope.unit in self.live.turns:
            return
        parsed = units.parse_turn_unit(scope.unit)
        live = LiveTurn(scope.unit, scope.mind, id=parsed[1] if parsed else None)
        turn = Turn(live, int(time.time() * 1000), Phase.FOREIGN, description=scope.description)
        self.live.add(turn)
        self.watch(turn)

    def scope_gone(self, unit: str) -> None:
        """Free the scope's slot, if it has one, and no process.

        systemd says that a unit is gone also while it is reloaded, and may do so by mistake
        (systemd#36781): the processes tell.
        """
        self._leaving.forgotten(unit)
        turn = self.live.turns.get(unit)
        if turn is None or self._has_processes(unit, turn.live.mind):
            return
        if turn.phase is Phase.STARTING:
            turn.gone = True
        else:
            self._ended(turn)

    def _emptied(self, unit: str) -> None:
        turn = self.live.turns.get(unit)
        if turn is not None and turn.phase is not Phase.STARTING:
            self._ended(turn)

    def _has_processes(self, unit: str, mind: str) -> bool:
        return cgroups.populated(self.cgroup(unit, mind))

    def scope_job(self, unit: str) -> None:
        """Only a stop makes a job for a turn's scope once it is up."""
        turn = self.live.turns.get(unit)
        if turn is not None and turn.phase is not Phase.STARTING:
            turn.stopped = True
            self.live.close_input(turn)

    def unit_started(self, unit: str) -> None:
        """A mind's own service was started (or stopped: a job tells not which, and trying does no harm)."""
        self._unit_started.send(UnitStarted(unit))

    async def _refresh(self) -> None:
        with suppress(SystemdLost, SystemdError):
            await self.systemd.refresh()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

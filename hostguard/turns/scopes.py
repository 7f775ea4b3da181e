"""The scopes of turns: starts them, follows them, and reports each one's end once.

A slot comes free only here, and only on evidence: the scope is gone, its cgroup is empty, or it never came
up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hostguard.core import outcome, paths, units
from hostguard.core.clock import AGAIN_MS, Clock
from hostguard.core.model import Limits, LiveTurn, Mind
from hostguard.core.outcome import Usage
from hostguard.core.signals import Redrive, Signal, UnitStarted
from hostguard.core.tasks import Tasks
from hostguard.linux import cgroup as cgroups
from hostguard.linux.process import dying, oldest
from hostguard.linux.usage import of_scope
from hostguard.systemd.client import Scope, Systemd
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.systemd.fork_client import ForkClient, Stub
from hostguard.turns.limit_check import Readback
from hostguard.turns.live import Live, Phase, Turn, TurnEnded, Waiting
from hostguard.turns.scope_reaper import ScopeReaper

log = logging.getLogger(__name__)

ASK_S = 1.0  # for an answer of systemd, while the guard itself is being stopped
SWEEP_S = 45.0  # while turns live, systemd's list is read this often: a lost report costs a slot no longer


@dataclass(eq=False)
class Scopes:
    """Starts scopes, follows them, and frees their slots.

    Signals: `redrive` if systemd reports what may let rows start, `turn_ended` for each slot that came free,
    `unit_started` for a service that runs a mind.
    """

    _live: Live
    _systemd: Systemd
    _forks: ForkClient
    _readback: Readback
    _redrive: Signal[Redrive]
    _turn_ended: Signal[TurnEnded]
    _unit_started: Signal[UnitStarted]
    _clock: Clock
    connected: bool = field(default=False, init=False)
    stopping: bool = field(default=False, init=False)  # the host shuts down
    device: str | None = field(default=None, init=False)  # block device node for per-device limits
    disk: str | None = field(default=None, init=False)  # the kernel's name of the same
    _sweep_timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    def __post_init__(self) -> None:
        self._watch = cgroups.Watch(self._emptied)
        self._reaper = ScopeReaper(self._systemd, self._has_processes)

    async def open(self) -> None:
        """Connect to systemd and have processes ready. Raises SystemdError, SystemdLost, OSError."""
        self._watch.open()
        await self._systemd.start(self)
        await self._forks.start()

    async def close(self) -> None:
        """Let go of everything; scopes are left running."""
        self._watch.close()
        self._reaper.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        await self._systemd.close()
        self._forks.close()

    @property
    def root(self) -> Path:
        """The cgroup folder of the service manager."""
        return cgroups.ROOT / self._systemd.control_group.lstrip("/")

    def cgroup(self, unit: str, mind: str) -> Path:
        """The cgroup folder of a turn's scope."""
        slices = self.root / units.SLICE
        return slices / units.mind_slice(mind) / unit if mind else slices / unit

    def frozen(self, turn: Turn) -> bool:
        """True if the turn's processes are frozen, by whomever."""
        return cgroups.frozen(self.cgroup(turn.live.unit, turn.live.mind))

    def frozen_by(self, turn: Turn) -> str | None:
        """The unit to thaw if the turn's processes are frozen, its scope or a slice; None: they are not."""
        return cgroups.frozen_by(self.cgroup(turn.live.unit, turn.live.mind))

    def frozen_service(self, mind: Mind) -> bool:
        """True if the mind has a service, and that is frozen."""
        own_slice = f"{units.SLICE}/{units.mind_slice(mind.name)}"
        return mind.unit is not None and cgroups.frozen_service(
            mind.unit, own_slice, self._systemd.control_group
        )

    # -- starting

    async def start_stub(
        self,
        turn: Turn,
        limits: Limits,
        let_go: Callable[[Stub, str], None],
        delegate: bool = False,
        caller: Waiting | None = None,
    ) -> bool:
        """Bring the turn's scope up around a stub, and call `let_go` with it and the turn's id.

        `delegate`: other processes are to be moved into the scope; `caller`: this one comes into it, too.
        False if the stub was not let go: nothing ran, and the turn's end says why.
        """
        assert turn.live.id is not None
        try:
            turn.stub = stub = await self._forks.take()
        except OSError as error:
            # The host, not the mind, keeps the turn from starting.
            reason = f"the guard cannot start a process: {error}"
            log.error("%s: %s", turn.live.unit, reason)
            self.give_up(turn, outcome.Ending("dismissed", reason, back=True, pause_ms=AGAIN_MS))
            return False
        turn.started = self._clock.now().stamp
        if not await self._bring_up(turn, limits, stub.pid, delegate, caller):
            return False
        asyncio.get_running_loop().add_reader(stub.pidfd, self._stub_ended, turn)
        if not (turn.asked or (turn.revoked and caller is None)):
            try:
                let_go(stub, turn.live.id)
                turn.released = True
                return True
            except OSError as error:
                log.warning("%s cannot run: %s", turn.live.unit, error)
        stub.dismiss()  # its end follows: a turn that never ran
        return False

    def _follow(self, turn: Turn) -> None:  # a scope whose end no stub of ours shows
        self._watch.add(turn.live.unit, self.cgroup(turn.live.unit, turn.live.mind))

    async def _bring_up(
        self, turn: Turn, limits: Limits, stub: int, delegate: bool, caller: Waiting | None
    ) -> bool:
        pids = [stub] if caller is None else [caller.pid, stub]
        unit, turn.pid = turn.live.unit, pids[0]
        properties = units.scope_properties(
            turn.live.mind, turn.description, limits, self.device, pids, delegate
        )
        if paths.USER:  # a user's manager stops turns after the guard, too; the host has a drop-in for that
            properties.append(("Before", "as", ["hostguard.service"]))
        self._sweep_later()
        try:
            await self._reaper.start_scope(unit, properties)
        except SystemdError as error:
            refused = outcome.Ending("not_started", f"systemd: {error}", failed=True)
            if await self.going_down():  # that has starts refused, and cancels those under way
                self.shutdown(True)
                refused = outcome.HOST_DOWN
            self.give_up(turn, refused if caller is None or caller.alive() else outcome.CALLER_LEFT)
            return False
        except SystemdLost as error:
            # The scope may still come up: the slot stays taken until systemd's list shows the truth.
            log.warning("%s: %s", unit, error)
            self._dismiss(turn)
            turn.phase = Phase.UNSURE
            if self.connected:
                self._tasks.start(self._refresh())
            return False
        await self._readback.look(self.cgroup(unit, turn.live.mind), limits)
        # The report may have been about an earlier turn of this name: a row that is tried again by request.
        if turn.gone and not self._has_processes(unit, turn.live.mind):
            self._dismiss(turn)
            self._ended(turn)
            return False
        turn.phase = Phase.RUNNING
        return True

    def _dismiss(self, turn: Turn) -> None:
        if turn.stub is not None:
            turn.stub.dismiss()

    def _stub_ended(self, turn: Turn) -> None:
        self._unfollow(turn)
        if self._has_processes(turn.live.unit, turn.live.mind):
            turn.phase = Phase.LINGERING
            self._follow(turn)
        else:
            self._ended(turn)

    def _unfollow(self, turn: Turn) -> None:
        if turn.stub is not None:
            asyncio.get_running_loop().remove_reader(turn.stub.pidfd)
            turn.stub.close()
            turn.stub = None

    # -- ending

    def _ended(self, turn: Turn) -> None:
        """The turn has no process any more."""
        ending = outcome.Ending("exited", "the scope is gone")
        if not turn.ended:
            turn.over(self._clock.now())
        if turn.driver is not None:
            try:
                ending = turn.driver.end(turn)
            except OSError as error:
                log.error("%s: its record cannot be read: %s; trying again", turn.live.unit, error)
                asyncio.get_running_loop().call_later(AGAIN_MS / 1000, self._ended, turn)
                return
        if dying():
            return  # the same signal went to all processes, whatever they made of it: see gate/shutdown.py
        if self.stopping and turn.resident is not None:
            ending = outcome.HOST_DOWN  # its mind is being stopped, too: a `done` may be about that
        if ending.cut_short and turn.delivery is not None and not turn.asked:
            self.account(turn)  # systemd may remove the scope before it answers
            self._tasks.start(self._cut_short(turn, ending))
        else:
            self.free(turn, ending)

    async def _cut_short(self, turn: Turn, ending: outcome.Ending) -> None:
        """The turn ended as one ends that is stopped with the host: ask systemd whether it was that."""
        try:
            down = await self._systemd.shutting_down()
        except (SystemdLost, SystemdError) as error:
            # Perhaps systemd itself goes down. Its next list, or the next guard, brings the turn up again.
            log.warning(
                "%s ended, and systemd does not say whether the host shuts down: %s", turn.live.unit, error
            )
            return
        self.free(turn, outcome.HOST_DOWN if down else ending)

    def free(self, turn: Turn, ending: outcome.Ending) -> None:
        """Free the turn's slot, if it has one still, and report its end."""
        if self._live.remove(turn):
            if not turn.ended:
                turn.over(self._clock.now())
            self._watch.remove(turn.live.unit)
            self._unfollow(turn)
            if turn.live.id is not None:
                self._reaper.add(turn.live.unit)
            self.account(turn)
            self._turn_ended.send(TurnEnded(turn, ending))

    def usage(self, turn: Turn) -> Usage:
        """The use of the turn so far."""
        return of_scope(self.cgroup(turn.live.unit, turn.live.mind), self.disk)

    def account(self, turn: Turn) -> None:
        """Read what the turn used while its scope exists, unless its record has it."""
        if turn.used is None and turn.delivery and not (turn.record and turn.record.account):
            turn.used = self.usage(turn)

    def give_up(self, turn: Turn, ending: outcome.Ending) -> None:
        """Free the slot of a turn that does not come up. One that was asked to stop is not tried again."""
        self._dismiss(turn)
        self.free(turn, outcome.NEVER_BEGAN if turn.asked else ending)

    def owns(self, pid: int) -> bool:
        """True if a live turn was started around this process."""
        return any(turn.pid == pid for turn in self._live)

    async def stop(self, turn: Turn) -> None:
        """Ask systemd to stop the turn's scope. Raises SystemdError, SystemdLost.

        A turn that is still starting does not run once its scope is up: a stop of the scope now would either
        find none, or make its start a failure, which is tried again.
        """
        turn.stopped = turn.asked = True
        self._live.close_input(turn)
        if turn.phase is Phase.STARTING:
            return
        with suppress(SystemdError):  # it is gone
            await self._systemd.thaw(turn.live.unit)  # systemd 255 and newer stop nothing that is frozen
        await self._systemd.stop_unit(turn.live.unit)
        self._stopping(turn)

    # -- what systemd reports

    def systemd_up(self, scopes: Sequence[Scope]) -> None:
        """Compare with systemd's list: unknown scopes take a slot, slots without processes come free."""
        self.connected = True
        for scope in scopes:
            if self._has_processes(scope.unit, scope.mind):
                self._take(scope)
            elif scope.unit not in self._live.turns and units.parse_turn_unit(scope.unit):
                self._reaper.add(scope.unit)
        for turn in self._live:
            if turn.phase is not Phase.STARTING:
                self.scope_gone(turn.live.unit)
        self._redrive.send(Redrive())

    def systemd_down(self) -> None:
        """Nothing is started until systemd is back."""
        self.connected = False
        log.warning("lost the connection to systemd; nothing is started until it is back")

    def scope_new(self, scope: Scope) -> None:
        """A scope that the guard did not start takes a slot, too."""
        if scope.unit not in self._live.turns:
            self._take(scope)
            self._redrive.send(Redrive())

    def _take(self, scope: Scope) -> None:
        if scope.unit in self._live.turns:
            return
        parsed = units.parse_turn_unit(scope.unit)
        outside = units.outside_id(scope.unit)
        live = LiveTurn(scope.unit, scope.mind, id=parsed[1] if parsed else outside)
        now, began = self._clock.now(), oldest(self.cgroup(scope.unit, scope.mind))
        started = now.stamp if began is None else now.of(began)
        phase = Phase.FOREIGN if outside is None else Phase.OUTSIDE
        turn = Turn(live, now.date_of(started), phase, description=scope.description, started=started)
        self._live.add(turn)
        self._follow(turn)
        self._sweep_later()

    def scope_gone(self, unit: str) -> None:
        """Free the scope's slot, if it has one, and no process.

        systemd also says that a unit is gone while it reloads, and may do so by mistake (systemd#36781): only
        the processes count.
        """
        self._reaper.forgotten(unit)
        turn = self._live.turns.get(unit)
        if turn is None or self._has_processes(unit, turn.live.mind):
            return
        if turn.phase is Phase.STARTING:
            turn.gone = True
        else:
            self._ended(turn)

    def _emptied(self, unit: str) -> None:
        turn = self._live.turns.get(unit)
        if turn is not None and turn.phase is not Phase.STARTING:
            self._ended(turn)

    def _has_processes(self, unit: str, mind: str) -> bool:
        return cgroups.populated(self.cgroup(unit, mind))

    def scope_job(self, unit: str) -> None:
        """Only a stop makes a job for a turn's scope once it is up."""
        turn = self._live.turns.get(unit)
        if turn is not None and turn.phase is not Phase.STARTING:
            turn.stopped = True
            self._live.close_input(turn)
            self._stopping(turn)

    def _stopping(self, turn: Turn) -> None:
        if turn.driver is not None:
            turn.driver.stopping(turn)

    def shutdown(self, stopping: bool) -> None:
        """Nothing starts any more once the host shuts down."""
        if stopping != self.stopping:
            self.stopping = stopping
            log.info("the host shuts down: no turn starts" if stopping else "the host goes on after all")
            if not stopping:
                self._redrive.send(Redrive())

    async def going_down(self) -> bool:
        """True if the host shuts down, as far as that can be known now."""
        if self.stopping or dying():
            return True
        try:
            return await asyncio.wait_for(self._systemd.shutting_down(), ASK_S)
        except (SystemdLost, SystemdError, TimeoutError):
            return False

    def unit_started(self, unit: str) -> None:
        """A mind's service was started, or stopped: a job does not say which, and trying does no harm."""
        self._unit_started.send(UnitStarted(unit))

    # -- the safety net

    def _sweep_later(self) -> None:
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        if len(self._live):
            self._sweep_later()
            if self.connected:
                self._tasks.start(self._refresh())

    async def _refresh(self) -> None:
        try:
            await self._systemd.refresh()
        except (SystemdLost, SystemdError) as error:
            log.warning("systemd's list of scopes cannot be read: %s; trying again", error)

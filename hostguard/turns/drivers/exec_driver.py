"""Turns of commands: a stub in a scope runs the mind's command, a script or the append to a file."""

from __future__ import annotations

import json

from hostguard.config.authorised import row_refusal
from hostguard.core import outcome, payload
from hostguard.core.model import Delivery, Kind, Mind, Waited, Work
from hostguard.core.names import FILE_SESSION
from hostguard.core.outcome import Ending, turn_id
from hostguard.systemd.fork_client import release
from hostguard.turns import exit_record
from hostguard.turns.exit_record import OUTPUT_MAX
from hostguard.turns.live import Turn, TurnDriver
from hostguard.turns.scopes import Scopes

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ExecDriver(TurnDriver):
    """Runs a command for each row."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes

    async def start(self, turn: Turn, mind: Mind, row: Delivery, raw: bytes) -> bool:
        """Let a stub run the command, unless the row was authorised for another user than the mind's."""
        if (why := row_refusal(row, mind)) is not None:
            self._scopes.give_up(turn, Ending("not_authorised", why, failed=True, hopeless=True))
            return False
        todo = work(mind, row, raw, turn.waited)
        cgroup = self._scopes.cgroup(turn.live.unit, mind.name)
        return await self._scopes.start_stub(
            turn, mind.limits, lambda stub, turn_id: release(stub, mind, todo, turn_id, cgroup)
        )

    def end(self, turn: Turn) -> Ending:
        """Read the record that the stub wrote."""
        assert turn.live.id is not None
        assert turn.delivery is not None
        turn.record = exit_record.read_record(turn.live.id)
        if turn.record is None and turn.released:
            return outcome.RECORD_LOST
        ending = outcome.ending(turn.record, turn.stopped, turn.ran_s, turn.max_turn, turn.delivery.kind)
        return outcome.NEVER_BEGAN if ending.back and turn.asked else ending


def work(mind: Mind, row: Delivery, raw: bytes, waited: Waited) -> Work:
    """What the row runs as the mind's user: its command, a schedule's script, or the append to a file."""
    variables = environment(mind, row, turn_id(row.id, row.attempts), waited.ms)
    if row.kind is Kind.SCRIPT:
        return Work(("/bin/sh", "-c", json.loads(raw)["script"]), b"", variables, OUTPUT_MAX)
    if row.kind is Kind.FILE:
        path = row.session.removeprefix(FILE_SESSION)
        return Work(("/bin/sh", "-c", 'cat >>"$0"', path), payload.file_line(row, raw), variables)
    return Work(mind.command, payload.for_exec(row, raw, waited.ms, waited.behind), variables)


def environment(mind: Mind, delivery: Delivery, turn: str, held_ms: int) -> dict[str, str]:
    """The environment of an exec mind's command, documented in packaging/hostguard.toml."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": mind.home,
        "USER": mind.user,
        "LOGNAME": mind.user,
        "SHELL": mind.shell,
        **mind.environment,
        "HOSTGUARD_MIND": mind.name,
        "HOSTGUARD_TURN": turn,
        "HOSTGUARD_DELIVERY": str(delivery.id),
        "HOSTGUARD_SESSION": delivery.session,
        "HOSTGUARD_CHANNEL": delivery.channel or "",
        "HOSTGUARD_SENDER": delivery.sender or "",
        "HOSTGUARD_ATTEMPT": str(delivery.attempts + 1),
        "HOSTGUARD_HELD_MS": str(held_ms),
    }

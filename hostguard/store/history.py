"""The rows that have ended: counted in whatever way they end, and only the newest kept. Keys outlive them."""

from __future__ import annotations

from hostguard.core.clock import now_ms
from hostguard.core.model import PENDING, State
from hostguard.store import keys
from hostguard.store.connection import Connection

TRIM_EVERY = 100  # rows that end between two looks at the history
TRIM_MAX = 1_000  # rows dropped in one transaction: other writes need not wait for more
# A fan-out's rows follow the row that carries their payload: at most this many.
FAN_OUT_MAX = 1000
# Dead letters stay until they are dropped: they do not count.
_PENDING_OR_DEAD = "(" + ", ".join(f"'{state}'" for state in (*PENDING, State.DEAD)) + ")"
_ENDED = f"state NOT IN {_PENDING_OR_DEAD}"
# Temporary triggers are this connection's alone: the file does not have them.
_TRIGGERS = f"""
CREATE TEMP TRIGGER ended_by_change AFTER UPDATE OF state ON main.deliveries
    WHEN new.state NOT IN {_PENDING_OR_DEAD} AND old.state IN {_PENDING_OR_DEAD}
    BEGIN SELECT row_ended(); END;
CREATE TEMP TRIGGER ended_when_stored AFTER INSERT ON main.deliveries
    WHEN new.state NOT IN {_PENDING_OR_DEAD}
    BEGIN SELECT row_ended(); END;
"""


class History:
    """Counts the rows that end, on the writing thread. Nothing is dropped before `keep` was called."""

    def __init__(self) -> None:
        self._rows: int | None = None
        self._ended = 0

    def watch(self, db: Connection) -> None:
        """Count the rows that end through this connection."""
        db.create_function("row_ended", 0, self._row_ended)
        db.executescript(_TRIGGERS)

    def _row_ended(self) -> None:
        self._ended += 1

    @property
    def due(self) -> bool:
        """Whether enough rows have ended, or are left over, to trim."""
        return self._rows is not None and self._ended >= TRIM_EVERY

    def keep(self, db: Connection, rows: int) -> None:
        """Keep this many ended rows from now on."""
        self._rows = rows
        self.trim(db)

    def trim(self, db: Connection) -> None:
        """Drop the oldest ended rows beyond those to keep; if there are many, not all at once."""
        assert self._rows is not None
        self._ended = 0
        rows, old_keys = trim(db, self._rows), keys.drop(db, now_ms())
        if rows == TRIM_MAX or old_keys == keys.DROP_MAX:
            self._ended = TRIM_EVERY


def trim(db: Connection, keep: int) -> int:
    """Drop up to TRIM_MAX of the oldest ended rows beyond `keep`, and payloads nobody refers to; how many."""
    over = db.execute(f"SELECT count(*) FROM deliveries WHERE {_ENDED}").fetchone()[0] - keep  # noqa: S608
    if over <= 0:
        return 0
    old = db.execute(
        f"SELECT id, payload FROM deliveries WHERE {_ENDED}"  # noqa: S608
        " AND id < (SELECT max(id) FROM deliveries) ORDER BY id LIMIT ?",
        (min(over, TRIM_MAX),),
    ).fetchall()
    keys.leave(db, [id_ for id_, _ in old], now_ms())
    db.executemany("DELETE FROM deliveries WHERE id = ?", [(id_,) for id_, _ in old])
    db.executemany(
        "DELETE FROM payloads WHERE id = ?1 AND NOT EXISTS"
        " (SELECT 1 FROM deliveries d WHERE d.id BETWEEN ?1 AND ?1 + ?2 AND d.payload = ?1)",
        [(payload, FAN_OUT_MAX) for payload in {payload for _, payload in old}],
    )
    return len(old)

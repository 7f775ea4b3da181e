"""The rows that have ended: counted in whatever way they end, and only the newest kept. Keys outlive them."""

from __future__ import annotations

from hostguard.core.clock import now_ms
from hostguard.store import keys, quota
from hostguard.store.connection import Connection

TRIM_EVERY = 100  # rows that end between two looks at the history
TRIM_MAX = 1_000  # rows dropped in one transaction: other writes need not wait for more
BYTES_EVERY = quota.ENDED_MAX // 8  # of ended large messages between two looks
# Dead letters stay until they are dropped: they do not count.
_ENDED = f"state NOT IN {quota.WAITS}"
# Temporary triggers are this connection's alone: the file does not have them.
_TRIGGERS = f"""
CREATE TEMP TRIGGER ended_by_change AFTER UPDATE OF state ON main.deliveries
    WHEN new.state NOT IN {quota.WAITS} AND old.state IN {quota.WAITS}
    BEGIN SELECT row_ended((SELECT bytes FROM large WHERE id = new.id)); END;
CREATE TEMP TRIGGER ended_when_stored AFTER INSERT ON main.deliveries
    WHEN new.state NOT IN {quota.WAITS}
    BEGIN SELECT row_ended((SELECT length(body) FROM payloads WHERE id = new.payload)); END;
"""  # noqa: S608


class History:
    """Counts the rows that end, on the writing thread. Nothing is dropped before `keep` was called."""

    def __init__(self) -> None:
        self._rows: int | None = None
        self._ended = self._bytes = 0

    def watch(self, db: Connection) -> None:
        """Count the rows that end through this connection, and their bytes."""
        quota.watch(db)
        db.create_function("row_ended", 1, self._row_ended)
        db.executescript(_TRIGGERS)

    def _row_ended(self, size: int | None) -> None:
        self._ended += 1
        self._bytes += size or 0

    @property
    def due(self) -> bool:
        """Whether enough rows have ended, or are left over, to trim."""
        enough = self._ended >= TRIM_EVERY or self._bytes >= BYTES_EVERY
        return self._rows is not None and enough

    def count_some(self, db: Connection, after: int) -> int | None:
        """As quota.count_some; at the end, all that is beyond ENDED_MAX is dropped."""
        if (last := quota.count_some(db, after)) is None:
            self._bytes = BYTES_EVERY
        return last

    def keep(self, db: Connection, rows: int) -> None:
        """Keep this many ended rows from now on."""
        self._rows = rows
        self.trim(db)

    def trim(self, db: Connection) -> None:
        """Drop the oldest ended rows beyond those to keep; if there are many, not all at once."""
        assert self._rows is not None
        self._ended = self._bytes = 0
        rows, old_keys = trim(db, self._rows), keys.drop(db, now_ms())
        if rows >= TRIM_MAX or old_keys == keys.DROP_MAX:
            self._ended = TRIM_EVERY


def trim(db: Connection, keep: int) -> int:
    """Drop the oldest ended rows beyond `keep` and ENDED_MAX, and payloads nobody refers to; how many.

    Up to TRIM_MAX of either at once.
    """
    return _drop(db, quota.beyond(db, TRIM_MAX)) + _drop(db, _beyond(db, keep))


def _beyond(db: Connection, keep: int) -> list[tuple[int, int]]:
    over = db.execute(f"SELECT count(*) FROM deliveries WHERE {_ENDED}").fetchone()[0] - keep  # noqa: S608
    if over <= 0:
        return []
    return db.execute(
        f"SELECT id, payload FROM deliveries WHERE {_ENDED}"  # noqa: S608
        " AND id < (SELECT max(id) FROM deliveries) ORDER BY id LIMIT ?",
        (min(over, TRIM_MAX),),
    ).fetchall()


def _drop(db: Connection, old: list[tuple[int, int]]) -> int:
    keys.leave(db, [id_ for id_, _ in old], now_ms())
    db.executemany("DELETE FROM deliveries WHERE id = ?", [(id_,) for id_, _ in old])
    db.executemany(
        "DELETE FROM payloads WHERE id = ?1 AND NOT EXISTS"
        " (SELECT 1 FROM deliveries d WHERE d.id BETWEEN ?1 AND ?1 + ?2 AND d.payload = ?1)",
        [(payload, quota.FAN_OUT_MAX) for payload in {payload for _, payload in old}],
    )
    return len(old)

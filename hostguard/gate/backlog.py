"""The queued rows in memory, ordered so that finding the next one to ask the gate about takes O(log n). Pure.

Rows are grouped by mind and session; a heap per mind orders its sessions by their first row, and one heap
orders the minds. Entries are checked when they surface instead of being removed (lazy deletion). A mind or
session that the gate holds is parked until `touch` brings it back: its rows are never scanned meanwhile.

A row given back keeps its place in its session. If it is due only after a pause, those behind it wait, too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from operator import itemgetter

from hostguard.core.clock import Now
from hostguard.core.model import Kind, Row, StoredRow
from hostguard.core.reasons import SESSION
from hostguard.gate.times import due_in_this_boot, waits_since


class _MindRows:
    """Due rows of one mind. A session with one row, the common case, costs one int."""

    __slots__ = ("count", "heads", "listed", "parked", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[str, int | deque[int]] = {}
        self.heads: list[tuple[int, str]] = []  # (first row, session); may be stale
        self.parked: set[str] = set()  # sessions that are left out until touched
        self.listed: int | None = None  # the mind's id in the order of minds; None if it is not there
        self.count = 0

    def first(self, session: str) -> int | None:
        rows = self.sessions.get(session)
        return rows[0] if isinstance(rows, deque) else rows

    def append(self, id_: int, session: str) -> bool:
        """Put the row in its place by id; True if it is now its session's first."""
        self.count += 1
        rows = self.sessions.get(session)
        if rows is None:
            self.sessions[session] = id_
            return True
        if not isinstance(rows, deque):
            rows = self.sessions[session] = deque((rows,))
        # A row given back (retry, backoff) has an old id.
        index = len(rows)
        while index and rows[index - 1] > id_:
            index -= 1
        rows.insert(index, id_)
        return index == 0

    def remove(self, id_: int, session: str) -> bool:
        rows = self.sessions.get(session)
        if isinstance(rows, deque):
            try:
                rows.remove(id_)
            except ValueError:
                return False
            if len(rows) == 1:
                self.sessions[session] = rows[0]
        elif rows == id_:
            del self.sessions[session]
        else:
            return False
        self.count -= 1
        return True

    def head(self) -> tuple[int, str] | None:
        """The first row of the sessions that are not parked."""
        heads = self.heads
        while heads:
            id_, session = heads[0]
            first = self.first(session)
            if first is None or session in self.parked:
                heappop(heads)
            elif first != id_:
                heapreplace(heads, (first, session))
            else:
                return heads[0]
        return None

    def ids(self) -> Iterator[int]:
        for rows in self.sessions.values():
            if isinstance(rows, deque):
                yield from rows
            else:
                yield rows


class Backlog:
    """Queued rows: those that are due, in order of id, and those that are not yet."""

    def __init__(self) -> None:
        self._minds: dict[str, _MindRows] = {}
        self._order: list[tuple[int, str]] = []  # (first row, mind); may be stale
        self._dates: list[tuple[int, int]] = []  # (not_before, id); may be stale
        self._ends: list[tuple[int, int]] = []  # (due, id), of pauses; may be stale
        self._since: dict[int, int] = {}  # of due rows: the stamp since which they wait
        self._later_rows: dict[int, Row] = {}
        self._later_count: Counter[str] = Counter()
        self._pauses: dict[int, Row] = {}  # rows that wait out a pause at their place in their session
        self._kinds: dict[int, Kind] = {}  # of due rows that are not plain messages
        self._apart: Counter[str] = Counter()  # rows that are counted apart, due or not, by mind
        self._fresh: list[Row] = []

    def __len__(self) -> int:
        """Rows that are due, or wait out a pause at their place."""
        return sum(rows.count for rows in self._minds.values())

    @property
    def later(self) -> int:
        """Rows that are not due yet."""
        return len(self._later_rows)

    def count(self, mind: str) -> int:
        """Rows of one mind that are due, or wait out a pause at their place."""
        rows = self._minds.get(mind)
        return rows.count if rows else 0

    def total(self, mind: str) -> int:
        """All rows of one mind, due or not."""
        return self.count(mind) + self._later_count[mind]

    def apart(self, mind: str) -> int:
        """Those of all rows of one mind whose kind is counted apart."""
        return self._apart[mind]

    def due_by(self, mind: str, within: int, now: Now) -> bool:
        """True if a row of the mind is due, or will be `within` so many ms. O(rows that are not due)."""
        later = self._later_count[mind] and any(
            row.mind == mind and _in_ms(row, now) <= within for row in self._later_rows.values()
        )
        return self.count(mind) > 0 or bool(later)

    def has(self, id_: int, mind: str, session: str) -> bool:
        """True if the row is here, due or not. O(rows of the session)."""
        rows = self._minds.get(mind)
        ids = rows.sessions.get(session) if rows else None
        if id_ in self._later_rows:
            return True
        return ids[-1] == id_ or id_ in ids if isinstance(ids, deque) else ids == id_

    def known(self, row: Row) -> Row | None:
        """The row as it is here, or None. Once it is due it stays so, and has `since`."""
        if row.id in self._since:
            return self._row(row.id, row.mind, row.session)
        return self._later_rows.get(row.id)

    def first(self, mind: str) -> Row | None:
        """The mind's oldest due row. The row stays."""
        rows = self._minds.get(mind)
        if rows is None:
            return None
        parked = [(id_, session) for session in rows.parked if (id_ := rows.first(session)) is not None]
        id_, session = min([*filter(None, [rows.head()]), *parked], default=(None, ""))
        return None if id_ is None else self._row(id_, mind, session)

    def load(self, rows: Iterable[StoredRow], now: Now, paused: Collection[int] = ()) -> None:
        """Add many rows, at start; none of them is fresh. `paused`: of those not due, the ids given back.

        A million of them take about a second in all, so this makes no Row of those that are due.
        """
        minds, kinds, message = self._minds, self._kinds, Kind.MESSAGE.value
        for id_, name, session, not_before, kind, due, created_at, accepted in rows:
            if not_before or due:
                row = Row(id_, name, session, not_before, Kind(kind), due_in_this_boot(due, not_before, now))
                if row.later(now):
                    if id_ in paused:
                        self.give_back(row, now)
                    else:
                        self._add_later(row)
                    continue
            self._since[id_] = waits_since(created_at, accepted, not_before, due, now)
            if kind != message:
                kinds[id_] = Kind(kind)
                self._apart[name] += kinds[id_].counted_apart
            mind = minds.get(name)
            if mind is None:
                mind = minds[name] = _MindRows()
            if mind.append(id_, session):
                heappush(mind.heads, (id_, session))
                if mind.listed is None or id_ < mind.listed:
                    mind.listed = id_
                    heappush(self._order, (id_, name))

    def add(self, row: Row, now: Now) -> None:
        """Add one row; `now` decides whether it is due. One without `since` waits from now on."""
        self._fresh.append(row)
        if row.later(now):
            self._add_later(row)
        else:
            self._add_due(row, row.since or now.stamp)

    def give_back(self, row: Row, now: Now) -> None:
        """Put a row back at its place in its session, which waits until the row is due."""
        if row.later(now):
            self._pauses[row.id] = row
            self._add_time(row)
        else:
            self._fresh.append(row)
        self._add_due(row, row.since or row.due or now.stamp)

    def _add_time(self, row: Row) -> None:
        if row.due:
            heappush(self._ends, (row.due, row.id))
        else:
            heappush(self._dates, (row.not_before, row.id))

    def _add_later(self, row: Row) -> None:
        self._add_time(row)
        self._later_rows[row.id] = row
        self._later_count[row.mind] += 1
        self._apart[row.mind] += row.kind.counted_apart

    def _add_due(self, row: Row, since: int) -> None:
        self._since[row.id] = since
        if row.kind is not Kind.MESSAGE:
            self._kinds[row.id] = row.kind
            self._apart[row.mind] += row.kind.counted_apart
        mind = self._minds.setdefault(row.mind, _MindRows())
        if mind.append(row.id, row.session):
            mind.parked.discard(row.session)  # what it was parked for holds another row
            heappush(mind.heads, (row.id, row.session))
        self.touch(row.mind)

    def fresh(self) -> list[Row]:
        """Rows that came, came due, or waited behind a pause that is over, since the last call.

        Some may be gone again.
        """
        fresh, self._fresh = self._fresh, []
        return fresh

    def remove(self, id_: int, mind: str, session: str) -> bool:
        """Remove a row (started, cancelled, expired). False if it was not here.

        The session of a row that waited out a pause goes on.
        """
        if self._forget_later(id_):
            return True
        rows = self._minds.get(mind)
        if rows is None or not rows.remove(id_, session):
            return False
        if not rows.count:
            del self._minds[mind]
        self._since.pop(id_, None)
        if kind := self._kinds.pop(id_, None):
            self._apart[mind] -= kind.counted_apart
        if self._pauses.pop(id_, None) is not None:
            self.touch(mind, session)
            if (first := self.first_in(mind, session)) is not None:
                self._fresh.append(first)
        return True

    def forget(self, ids: Collection[int]) -> None:
        """Remove these rows, wherever they are: they are not stored any more. O(all rows)."""
        for name, rows in list(self._minds.items()):
            for session, queued in list(rows.sessions.items()):
                for id_ in list(queued) if isinstance(queued, deque) else [queued]:
                    if id_ in ids:
                        self.remove(id_, name, session)
        for id_ in ids:
            self._forget_later(id_)

    def _forget_later(self, id_: int) -> Row | None:
        row = self._later_rows.pop(id_, None)
        if row is not None:
            self._later_count[row.mind] -= 1
            self._apart[row.mind] -= row.kind.counted_apart
        return row

    def touch(self, mind: str, session: str | None = None) -> None:
        """The mind, and the session if one is named, may be startable again."""
        rows = self._minds.get(mind)
        if rows is None:
            return
        if session in rows.parked:
            rows.parked.discard(session)
            if (first := rows.first(session)) is not None:
                heappush(rows.heads, (first, session))
        if rows.heads and (rows.listed is None or rows.heads[0][0] < rows.listed):
            rows.listed = rows.heads[0][0]
            heappush(self._order, (rows.listed, mind))

    def park(self, row: Row, holds: str) -> None:
        """Leave the row's session, or else its mind, out of `next` until it is touched.

        `holds` is that of the Reason why the row waits.
        """
        rows = self._minds.get(row.mind)
        if rows is None:
            return
        if holds == SESSION:
            rows.parked.add(row.session)
            rows.head()
        else:
            rows.listed = None

    def due(self, now: Now) -> list[Row]:
        """Move the rows whose time has come to the due ones; they are fresh. In order of id."""
        rows = []
        while (found := self._next_later(now)) is not None and found[0] <= 0:
            row = found[1]
            if self._pauses.pop(row.id, None) is not None:
                self.touch(row.mind, row.session)
            else:
                self._forget_later(row.id)
                self._add_due(row, row.due or now.stamp)
            rows.append(row)
        rows.sort(key=lambda row: row.id)
        self._fresh += rows
        return rows

    def due_in(self, now: Now) -> int | None:
        """Ms until the next row comes due; None if none does."""
        found = self._next_later(now)
        return None if found is None else found[0]

    def _next_later(self, now: Now) -> tuple[int, Row] | None:
        """The row that comes due next, and in how many ms."""
        found = []
        for times in (self._dates, self._ends):
            while times:
                when, id_ = times[0]
                row = self._later_rows.get(id_) or self._pauses.get(id_)
                if row is not None and when == (row.due or row.not_before):
                    found.append((_in_ms(row, now), row))
                    break
                heappop(times)
        return min(found, key=itemgetter(0), default=None)

    def next(self) -> Row | None:
        """The first row, by id, of all minds and sessions that are not parked.

        The row stays: the caller removes it as it starts, or parks its mind or session.
        """
        while self._order:
            id_, name = self._order[0]
            mind = self._minds.get(name)
            if mind is None or mind.listed != id_:
                heappop(self._order)
                continue
            head = mind.head()
            if head is None:
                heappop(self._order)
                mind.listed = None
            elif head[0] != id_:
                heapreplace(self._order, (head[0], name))
                mind.listed = head[0]
            else:
                return self._row(id_, name, head[1])
        return None

    def _row(self, id_: int, mind: str, session: str) -> Row:
        since, paused = self._since[id_], self._pauses.get(id_)
        if paused is not None:
            return replace(paused, since=since)
        return Row(id_, mind, session, 0, self._kinds.get(id_, Kind.MESSAGE), 0, since)

    def paused(self, mind: str, session: str) -> Row | None:
        """The session's first row, if it waits out a pause."""
        first = self.first_in(mind, session) if self._pauses else None
        return None if first is None else self._pauses.get(first.id)

    def first_in(self, mind: str, session: str) -> Row | None:
        """The session's first row, which may be parked or wait out a pause. The row stays."""
        rows = self._minds.get(mind)
        id_ = rows.first(session) if rows else None
        return None if id_ is None else self._row(id_, mind, session)

    def ahead(self, row: Row) -> list[Row]:
        """The rows of its session before this one. O(rows of the session)."""
        rows = self._minds.get(row.mind)
        ids = rows.sessions.get(row.session) if rows else None
        found = ids if isinstance(ids, deque) else ()
        return [self._row(id_, row.mind, row.session) for id_ in found if id_ < row.id]

    def place(self, id_: int, mind: str) -> int:
        """Place in line among the mind's due rows, 1 = next. O(rows of the mind)."""
        rows = self._minds.get(mind)
        return 1 + sum(other < id_ for other in rows.ids()) if rows else 1

    def mind_names(self) -> list[str]:
        """Minds that have due rows."""
        return list(self._minds)


def _in_ms(row: Row, now: Now) -> int:
    """Ms until a row that is not due comes due."""
    return now.until(row.due) if row.due else row.not_before - now.date

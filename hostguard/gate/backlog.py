"""The queued rows in memory, ordered so that finding the next startable one takes O(log n). Pure.

Rows are kept per mind and session; a heap per mind orders its sessions by their first row, and one heap
orders the minds. Entries are checked when they surface instead of being removed (lazy deletion), and a
mind or session that is busy is left out until `touch` brings it back. Busy minds are thus never scanned,
however many rows they have.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace

from hostguard.core.model import Kind, Row


class _MindRows:
    """Due rows of one mind. A session with one row, the common case, costs one int."""

    __slots__ = ("count", "heads", "listed", "parked", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[str, int | deque[int]] = {}
        self.heads: list[tuple[int, str]] = []  # (first row, session); may be stale
        self.parked: set[str] = set()  # sessions found busy: their entries left `heads`
        self.listed: int | None = None  # the id under which the mind stands in the order of minds
        self.count = 0

    def first(self, session: str) -> int | None:
        rows = self.sessions.get(session)
        return rows[0] if isinstance(rows, deque) else rows

    def append(self, row: Row) -> bool:
        """Put the row in its place by id; True if it is now its session's first."""
        self.count += 1
        rows = self.sessions.get(row.session)
        if rows is None:
            self.sessions[row.session] = row.id
            return True
        if not isinstance(rows, deque):
            rows = self.sessions[row.session] = deque((rows,))
        # A row given back (retry, backoff) has an old id.
        index = len(rows)
        while index and rows[index - 1] > row.id:
            index -= 1
        rows.insert(index, row.id)
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

    def head(self, busy: Collection[str]) -> tuple[int, str] | None:
        """The first row of a session that is not busy; busy ones are parked."""
        heads = self.heads
        while heads:
            id_, session = heads[0]
            first = self.first(session)
            if first is None:
                heappop(heads)
            elif session in busy:
                heappop(heads)
                self.parked.add(session)
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
    """Queued rows: those due, in order of id, and those whose time has not come."""

    def __init__(self) -> None:
        self._minds: dict[str, _MindRows] = {}
        self._order: list[tuple[int, str]] = []  # (first row, mind); may be stale
        self._later: list[tuple[int, int]] = []  # (not_before, id); may be stale
        self._later_rows: dict[int, Row] = {}
        self._later_count: Counter[str] = Counter()
        self._runs: set[int] = set()  # ids of Kind.RUN rows, few

    def __len__(self) -> int:
        """Rows that are due."""
        return sum(rows.count for rows in self._minds.values())

    @property
    def later(self) -> int:
        """Rows whose time has not come."""
        return len(self._later_rows)

    def count(self, mind: str) -> int:
        """Due rows of one mind."""
        rows = self._minds.get(mind)
        return rows.count if rows else 0

    def total(self, mind: str) -> int:
        """All rows of one mind, due or not."""
        return self.count(mind) + self._later_count[mind]

    def due_by(self, mind: str, when: int) -> bool:
        """Whether a row of the mind is due, or will be at `when`, in ms. O(rows that are not due)."""
        later = self._later_count[mind] and any(
            row.mind == mind and row.not_before <= when for row in self._later_rows.values()
        )
        return self.count(mind) > 0 or bool(later)

    def has(self, id_: int, mind: str, session: str) -> bool:
        """Whether the row is here, due or not. O(rows of the session)."""
        rows = self._minds.get(mind)
        ids = rows.sessions.get(session) if rows else None
        if id_ in self._later_rows:
            return True
        return ids[-1] == id_ or id_ in ids if isinstance(ids, deque) else ids == id_

    def first(self, mind: str) -> Row | None:
        """The mind's oldest due row. The row stays."""
        rows = self._minds.get(mind)
        if rows is None:
            return None
        parked = [(id_, session) for session in rows.parked if (id_ := rows.first(session)) is not None]
        id_, session = min([*filter(None, [rows.head(())]), *parked], default=(None, ""))
        return None if id_ is None else Row(id_, mind, session, 0, self._kind(id_))

    def load(self, rows: Iterable[tuple[int, str, str, int]], now: int) -> None:
        """Add many (id, mind, session, not_before) in order of id, at start.

        A million of them take about a second, so this makes no Row of each, and the heaps once, at the end.
        """
        minds = self._minds
        names: dict[str, str] = {}  # equal sessions share one string
        for id_, name, session, not_before in rows:
            if not_before > now:
                self._add_later(Row(id_, name, session, not_before))
                continue
            mind = minds.get(name)
            if mind is None:
                mind = minds[name] = _MindRows()
            waiting = mind.sessions.get(session)
            if waiting is None:
                mind.sessions[names.setdefault(session, session)] = id_
            elif isinstance(waiting, deque):
                waiting.append(id_)
            else:
                mind.sessions[session] = deque((waiting, id_))
            mind.count += 1
        for mind in minds.values():
            mind.heads = [(first, s) for s in mind.sessions if (first := mind.first(s)) is not None]
            heapify(mind.heads)
            mind.listed = mind.heads[0][0]
        self._order = [(mind.listed, name) for name, mind in minds.items() if mind.listed]
        heapify(self._order)

    def add(self, row: Row, now: int) -> None:
        """Add one row; `now`, in ms since the epoch, decides whether it is due."""
        if row.not_before > now:
            self._add_later(row)
        else:
            self._add_due(row)

    def _add_later(self, row: Row) -> None:
        heappush(self._later, (row.not_before, row.id))
        self._later_rows[row.id] = row
        self._later_count[row.mind] += 1

    def _append(self, row: Row) -> bool:
        if row.kind is Kind.RUN:
            self._runs.add(row.id)
        return self._minds.setdefault(row.mind, _MindRows()).append(row)

    def _add_due(self, row: Row) -> None:
        if self._append(row):
            mind = self._minds[row.mind]
            if row.session not in mind.parked:
                heappush(mind.heads, (row.id, row.session))
        self.touch(row.mind)

    def remove(self, id_: int, mind: str, session: str) -> bool:
        """Take a row out (started, cancelled, expired). False if it was not here."""
        if self._forget_later(id_):
            return True
        rows = self._minds.get(mind)
        if rows is None or not rows.remove(id_, session):
            return False
        if not rows.count:
            del self._minds[mind]
        self._runs.discard(id_)
        return True

    def _forget_later(self, id_: int) -> Row | None:
        row = self._later_rows.pop(id_, None)
        if row is not None:
            self._later_count[row.mind] -= 1
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

    def due(self, now: int) -> list[Row]:
        """Move the rows whose time has come to the due ones, and return them in order of id."""
        rows = []
        while (when := self.next_due()) is not None and when <= now:
            row = self._forget_later(heappop(self._later)[1])
            if row is not None:
                rows.append(row)
        for row in rows:
            self._add_due(row)
        return sorted(rows, key=lambda row: row.id)

    def hasten(self, ids: Iterable[int], after: int, now: int) -> None:
        """Those of the rows that come due later than `after` come due now; both in ms since the epoch."""
        for id_ in ids:
            row = self._later_rows.get(id_)
            if row is not None and row.not_before > after:
                self._forget_later(id_)
                self._add_later(replace(row, not_before=now))

    def next_due(self) -> int | None:
        """When the next row comes due, in ms since the epoch."""
        while self._later:
            when, id_ = self._later[0]
            row = self._later_rows.get(id_)
            if row is not None and row.not_before == when:
                return when
            heappop(self._later)
        return None

    def next(self, is_open: Callable[[str], bool], busy: Callable[[str], Collection[str]]) -> Row | None:
        """The first row, by id, of a mind that is open and in a session of it that is not busy.

        A mind found closed and a session found busy are left out until they are touched. The row stays:
        the caller removes it when it starts.
        """
        while self._order:
            id_, name = self._order[0]
            mind = self._minds.get(name)
            if mind is None or mind.listed != id_:
                heappop(self._order)
                continue
            head = mind.head(busy(name)) if is_open(name) else None
            if head is None:
                heappop(self._order)
                mind.listed = None
            elif head[0] != id_:
                heapreplace(self._order, (head[0], name))
                mind.listed = head[0]
            else:
                return Row(id_, name, head[1], 0, self._kind(id_))
        return None

    def _kind(self, id_: int) -> Kind:
        return Kind.RUN if id_ in self._runs else Kind.MESSAGE

    def first_in(self, mind: str, session: str) -> Row | None:
        """The session's first due row, whether or not it could start. The row stays."""
        rows = self._minds.get(mind)
        id_ = rows.first(session) if rows else None
        return Row(id_, mind, session) if id_ is not None and id_ not in self._runs else None

    def place(self, id_: int, mind: str) -> int:
        """Place in line among the mind's due rows, 1 = next. O(rows of the mind)."""
        rows = self._minds.get(mind)
        return 1 + sum(other < id_ for other in rows.ids()) if rows else 1

    def mind_names(self) -> list[str]:
        """Minds that have due rows."""
        return list(self._minds)

"""The WAL that a killed guard or a power cut left: does SQLite replay all of it? Asked before it is opened.

SQLite replays up to the first frame whose checksum or salt is wrong, and ignores the rest. That is right for
what a power cut left of a change that was never confirmed, and wrong for what a card damaged later. The two
look alike in part. Taken for damage, since no power cut leaves it:
- a frame with one wrong word of 4 bytes, in a change whose last frame is there. The checksum mostly tells
  which word and what it was; then it is set right.
- a bad frame that two whole changes or more follow, each of their frames with the checksum that follows from
  the frame before.
- a bad header that frames follow whose checksums begin with it.
A bad last change with more than a wrong word is taken for a power cut's: nobody can tell.
https://sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from hostguard.store import asides
from hostguard.store.asides import Aside

log = logging.getLogger(__name__)

MAGIC = 0x377F0682  # the lowest bit: the words of the checksums are big-endian
FORMAT = 3007000
HEADER, FRAME = 32, 24  # bytes; a frame's header comes before its page
REPAIRS_MAX = 64  # words: with more, the card has not just lost some bits
_MASK = (1 << 32) - 1
Sum = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong with a WAL. `repair`: (offset, bytes) that set right the first bad word, if known."""

    frame: int  # the first bad one, from 0; -1: the header
    changes: int  # that are not replayed, as far as is known
    repair: tuple[int, bytes] | None


def mend(path: Path) -> bool:
    """Keep a copy of a queue whose WAL is damaged, and repair the WAL if that can be done. Raises OSError.

    True if there is a WAL.
    """
    file = path.with_name(f"{path.name}-wal")
    try:
        raw = bytearray(file.read_bytes())
        page_size = _page_size(path)
    except FileNotFoundError:
        return False
    repairs: list[tuple[int, bytes]] = []
    while (found := examine(raw, page_size)) is not None and found.repair is not None:
        offset, right = found.repair
        raw[offset : offset + len(right)] = right
        repairs.append(found.repair)
        if len(repairs) > REPAIRS_MAX:
            break
    if not repairs and found is None:
        return len(raw) > 0
    aside = asides.copy(path, Aside.REPAIRED if found is None else Aside.UNREPLAYED)
    with file.open("r+b") as stream:
        for offset, right in repairs:
            stream.seek(offset)
            stream.write(right)
        stream.flush()
        os.fsync(stream.fileno())
    if found is None:
        log.critical(
            "%s was damaged; %d words are set right; kept as it was: %s-wal", file, len(repairs), aside
        )
    else:
        text = "%s is damaged at frame %d, %d changes or more are lost; it is kept as it was: %s-wal"
        log.critical(text, file, found.frame, found.changes, aside)
    return True


def _page_size(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(18)
    return int.from_bytes(head[16:18], "big") if len(head) == 18 else 0


def examine(raw: bytes | bytearray, page_size: int) -> Found | None:
    """What is wrong with a WAL, other than a change that was never confirmed; None: nothing.

    `page_size` is that of the database, for a WAL whose header is damaged.
    """
    if len(raw) < HEADER + FRAME:
        return None
    head = struct.unpack(">8I", raw[:HEADER])
    fine = (
        head[0] & ~1 == MAGIC
        and head[1] == FORMAT
        and head[6:] == _sum(_words(raw[:24], head[0] & 1), (0, 0))
    )
    if not fine:
        return _bad_header(raw, head, page_size)
    wal = _Frames(raw, head[2], head[0] & 1, head[4:6])
    bad, before = wal.first_bad(head[6:])
    return None if bad is None else _bad_frame(wal, bad, before)


def _bad_header(raw: bytes | bytearray, head: tuple[int, ...], page_size: int) -> Found | None:
    """The frames tell what the header was."""
    salts = struct.unpack_from(">2I", raw, HEADER + 8)
    for big in (0, 1):
        for checkpoint in dict.fromkeys((head[3], *(head[3] ^ 1 << bit for bit in range(32)))):
            fields = struct.pack(">6I", MAGIC | big, FORMAT, page_size, checkpoint, *salts)
            seed = _sum(_words(fields, big), (0, 0))
            wal = _Frames(raw, page_size, big, salts)
            if wal.count and wal.linked(0, seed):
                changes = sum(wal.size(frame) > 0 for frame in range(wal.good(seed)))
                return Found(-1, changes, (0, fields + struct.pack(">2I", *seed))) if changes else None
    return None


def _bad_frame(wal: _Frames, bad: int, before: Sum) -> Found | None:
    repairs, last = wal.one_word(bad, before)
    sized = wal.size(bad) > 0 or any(offset == wal.at(bad) + 4 for offset, _ in repairs)
    changes = int(bool(repairs) and sized)
    for frame in range(bad + 1, wal.count):
        if not wal.current(frame):
            break
        changes += wal.linked(frame, last) and wal.size(frame) > 0
        last = wal.stored(frame)
    if changes < (1 if repairs else 2):
        return None
    return Found(bad, changes, repairs[0] if len(repairs) == 1 else None)


@dataclass(frozen=True, slots=True)
class _Frames:
    """The frames of a WAL, by number."""

    raw: bytes | bytearray
    page_size: int
    big: int
    salts: tuple[int, ...]

    @property
    def count(self) -> int:
        return (len(self.raw) - HEADER) // (FRAME + self.page_size) if self.page_size >= 512 else 0

    def at(self, frame: int) -> int:
        """Where it begins in the file."""
        return HEADER + frame * (FRAME + self.page_size)

    def _field(self, frame: int, index: int) -> int:
        return int(struct.unpack_from(">I", self.raw, self.at(frame) + 4 * index)[0])

    def size(self, frame: int) -> int:
        """Pages of the database after this frame, if it is the last of a change; otherwise 0."""
        return self._field(frame, 1)

    def current(self, frame: int) -> bool:
        """True if it is of this WAL, and not left of one before."""
        return (self._field(frame, 2), self._field(frame, 3)) == self.salts

    def stored(self, frame: int) -> Sum:
        return self._field(frame, 4), self._field(frame, 5)

    def content(self, frame: int) -> tuple[int, ...]:
        """The words that the checksum is of."""
        at = self.at(frame)
        page = self.raw[at + FRAME : at + FRAME + self.page_size]
        return _words(self.raw[at : at + 8] + page, self.big)

    def linked(self, frame: int, before: Sum) -> bool:
        """True if the checksum is that of the frame after one with the checksum `before`."""
        return _sum(self.content(frame), before) == self.stored(frame)

    def first_bad(self, seed: Sum) -> tuple[int | None, Sum]:
        """The first frame that SQLite does not replay, if any, and the checksum before it."""
        for frame in range(self.count):
            if not (self.current(frame) and self.linked(frame, seed) and self._field(frame, 0)):
                return frame, seed
            seed = self.stored(frame)
        return None, seed

    def good(self, seed: Sum) -> int:
        """How many frames can be replayed."""
        bad, _ = self.first_bad(seed)
        return self.count if bad is None else bad

    def one_word(self, frame: int, before: Sum) -> tuple[list[tuple[int, bytes]], Sum]:
        """The ways to set right a frame with one bad word, none if it has more; then its checksum."""
        at, stored, found = self.at(frame), self.stored(frame), _sum(self.content(frame), before)
        salts = self._field(frame, 2), self._field(frame, 3)
        off = sum(a != b for a, b in zip(salts, self.salts, strict=True))
        if found == stored:
            return [(at + 8, struct.pack(">2I", *self.salts))] if off == 1 else [], stored
        if off:
            return [], stored
        the_sum = []  # if that is the bad word
        if found[0] == stored[0] or found[1] == stored[1]:
            the_sum = [(at + 16, struct.pack(">2I", *found))]
            if frame + 1 < self.count and self.current(frame + 1) and self.linked(frame + 1, found):
                return the_sum, found
            if frame + 1 < self.count and self.current(frame + 1) and self.linked(frame + 1, stored):
                the_sum = []
        ways = _wrong_words(self.content(frame), found, stored)
        kind = ">I" if self.big else "<I"
        offsets = [(at if index < 2 else at + FRAME - 8) + 4 * index for index, _ in ways]
        words = [struct.pack(kind, word) for _, word in ways]
        return the_sum + list(zip(offsets, words, strict=True)), stored


def _words(raw: bytes | bytearray, big: int) -> tuple[int, ...]:
    return struct.unpack(f"{'>' if big else '<'}{len(raw) // 4}I", raw)


def _sum(words: tuple[int, ...], seed: Sum) -> Sum:
    one, two = seed
    pairs = iter(words)
    for first, second in zip(pairs, pairs, strict=True):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two


def _wrong_words(words: tuple[int, ...], found: Sum, stored: Sum) -> list[tuple[int, int]]:
    """The words of which one, if changed, gives the checksum `stored`, not `found`, and its right value.

    More than one is only found for a change of the highest bits.
    """
    off = [(got - want) & _MASK for got, want in zip(found, stored, strict=True)]
    even, odd = (1, 1), (0, 1)  # what 1 more in the last two words adds to the checksum
    ways = []
    for index in range(len(words) - 2, -1, -2):
        for place, weights in ((index, even), (index + 1, odd)):
            known = 0 if weights[0] % 2 else 1  # one of them is odd: neighbours among Fibonacci's numbers
            more = off[known] * pow(weights[known], -1, 1 << 32) & _MASK
            if all((weight * more) & _MASK == gap for weight, gap in zip(weights, off, strict=True)):
                ways.append((place, (words[place] - more) & _MASK))
        even, odd = (_one_pair_earlier(even), _one_pair_earlier(odd))
    return ways


def _one_pair_earlier(weights: Sum) -> Sum:
    one, two = weights
    return (one + two) & _MASK, (one + 2 * two) & _MASK

"""Where and when the minds' Bash tools ran, as they say themselves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One Bash call of `Ran.command`."""

    label: str
    began: float  # time.time()
    ended: float | None  # None: it runs, or was killed
    cgroups: tuple[str, ...]  # at its begin and, if it ended, at its end

    @property
    def span(self) -> tuple[float, float]:
        """From begin to end, or to now."""
        return self.began, self.ended or time.time()

    @property
    def in_scope(self) -> bool:
        """Whether it ran in a turn's scope, from begin to end."""
        return all("/hostguard-turn-" in cgroup for cgroup in self.cgroups)


class Ran:
    """The log that the Bash calls of a test write. Any user may write to it."""

    def __init__(self, path: Path = Path("/run/ran.log")) -> None:
        self._path, self._go = path, path.with_suffix(".go")
        path.write_text("")
        path.chmod(0o666)
        self._go.unlink(missing_ok=True)

    def command(self, label: str, seconds: float = 0, also: str = "") -> str:
        """A command for a message: log where it runs, wait, run `also`, log again. `label`: one word."""
        return f"{self._note('begin', label)}; sleep {seconds}; {also or 'true'}; {self._note('end', label)}"

    def until_released(self) -> str:
        """A command, for `also`, that ends once `release` was called."""
        return f"while [ ! -e {self._go} ]; do sleep 0.1; done"

    def release(self) -> None:
        self._go.touch()

    def runs(self, *labels: str) -> list[Run]:
        """The calls so far, with these labels or all, in order of their begins."""
        lines = [one.split() for one in self._path.read_text().splitlines()]
        ends = {pid: (float(at), cgroup) for what, _, pid, at, cgroup in lines if what == "end"}
        found = []
        for what, label, pid, at, cgroup in lines:
            if what == "begin" and (not labels or label in labels):
                ended, last = ends.get(pid, (None, ""))
                found.append(Run(label, float(at), ended, (cgroup, last) if last else (cgroup,)))
        return found

    def _note(self, what: str, label: str) -> str:
        return f"echo {what} {label} $$ $(date +%s.%N) $(sed -n 's/^0:://p' /proc/self/cgroup) >>{self._path}"

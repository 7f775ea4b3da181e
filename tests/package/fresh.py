"""A fresh Debian in a guest of the rig, whose shell a test speaks to from outside."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from uuid import uuid4

ROOT = Path(__file__).parents[2]
LONG_S = 300  # for any one command; most take a second


def tool(*command: str | Path, **more: str) -> str:
    """Run a command of the machine's own Debian; its output. `more`: variables for it."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **more}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done
    return done.stdout.strip()


@dataclass(frozen=True)
class Said:
    """What a command printed, both streams, and its exit status."""

    text: str
    status: int


class Host:
    """A context manager: the guest runs while it is entered. `binds`: folders to show in it, read-only."""

    def __init__(self, tree: Path, binds: dict[Path, str]) -> None:
        self._argv = [str(ROOT / "tests/rig/guest"), "-r", str(tree)]
        for source, target in binds.items():
            self._argv += ["-B", f"{source}:{target}"]
        self._argv += ["--", "timeout", "1800", "bash"]

    def __enter__(self) -> Host:
        self._guest = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._guest.stdin is not None
        assert self._guest.stdout is not None
        self._guest.stdin.close()
        self._guest.stdout.close()
        self._guest.wait()

    def run(self, script: str, check: bool = True) -> str:
        """Run a shell script as root; what it said. With `check` it is to end well."""
        said = self.ask(script)
        assert said.status == 0 or not check, f"{script}\nexit status {said.status}\n{said.text}"
        return said.text

    def ask(self, script: str) -> Said:
        """Run a shell script as root, in a shell of its own."""
        assert self._guest.stdin is not None
        assert self._guest.stdout is not None
        mark = f"end-{uuid4()}"
        quoted = script.replace("'", "'\\''")
        self._guest.stdin.write(
            f"timeout {LONG_S} bash -c '{quoted}' </dev/null 2>&1; status=$?; echo; echo {mark} $status\n"
        )
        self._guest.stdin.flush()
        lines: list[str] = []
        for line in self._guest.stdout:
            if line.startswith(mark):
                return Said("".join(lines).removesuffix("\n"), int(line.split()[1]))
            lines.append(line)
        raise AssertionError("".join(["the guest is gone\n", *lines]))

    def wait_for(self, script: str, seconds: float = 30) -> str:
        """Run it again and again until it ends well; what it said then."""
        end = time.monotonic() + seconds
        while (said := self.ask(script)).status != 0:
            assert time.monotonic() < end, f"{script}\n{said.text}"
            time.sleep(0.1)
        return said.text

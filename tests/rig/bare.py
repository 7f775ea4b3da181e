"""The command line on a host without the daemon: a configuration and a runtime folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ODD = "Ü-x/ \\y"  # a name of which nothing may go into a unit name as it is

CONFIG = """
[limits]
global_concurrent_turns = 2
[turn]
tasks_max = 77
io_weight = 42
"""


class Host:
    """The command line in a runtime folder of its own, with minds a, b, c and an oddly named one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        minds = "".join(
            f'[minds.{json.dumps(name, ensure_ascii=False)}]\ncommand = ["/bin/true"]\nuser = "root"\n'
            for name in ("a", "b", "c", ODD)
        )
        (folder / "hostguard.toml").write_text(CONFIG + minds)
        self.env = {
            **os.environ,
            "HOSTGUARD_CONFIG": str(folder / "hostguard.toml"),
            "HOSTGUARD_RUNTIME": str(folder / "run"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.started: list[subprocess.Popen[str]] = []

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "hostguard", *args]

    def __call__(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            self.argv(*args), cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=60, check=False,
            **options,
        )  # fmt: skip

    def unprivileged(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *self.argv(*args)],
            cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*args), cwd=ROOT, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def live(self) -> list[dict[str, Any]]:
        live: list[dict[str, Any]] = json.loads(self("status", "--json").stdout)["live"]
        return live

    def hold_slot(self, mind: str) -> subprocess.Popen[str]:
        """A turn of `mind` that has started."""
        process = self.start("run", "--mind", mind, "--", "sh", "-c", "echo up; exec sleep 60")
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    def wait_held(self, *args: str) -> subprocess.Popen[str]:
        """A `hostguard run` that has just found the slot taken."""
        process = self.start("run", "-v", *args)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "held" in line, line
        return process

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)
        subprocess.run(["systemctl", "stop", "hostguard.slice"], check=True)


@contextmanager
def bare_host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="hg") as folder:
        Path(folder).chmod(0o755)
        host = Host(Path(folder))
        try:
            yield host
        finally:
            host.close()

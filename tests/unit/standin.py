"""A stand-in for the daemon on a real socket, for tests of the `hostguard` command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NEW_YEAR = 1_798_761_600_000  # 2027-01-01T00:00Z
SHOWN = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NEW_YEAR / 1000))


@dataclass
class StandIn:
    """Answers canned responses on the daemon's socket, and keeps what was asked."""

    folder: Path
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)  # environment

    def answer(self, request: str, body: Any, status: int = 200, **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[request] = (status, headers, raw)

    def run(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {"stdin": subprocess.DEVNULL} | options if "input" not in options else options
        return subprocess.run(
            [sys.executable, "-m", "hostguard", *args],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    @property
    def env(self) -> dict[str, str]:
        return (
            os.environ | {"HOSTGUARD_RUNTIME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"} | self.extra
        )


def row(id_: int = 1, state: str = "queued", **more: Any) -> dict[str, Any]:
    unset = dict.fromkeys(
        ("key", "sender", "channel", "not_before", "expires_at", "turn", "started_at", "ended_at", "hold")
    )
    now = round(time.time() * 1000)
    return {
        "id": id_, "mind": "m", "session": "main", "state": state, "kind": "message", "created_at": now,
        "attempts": 0, "result": {}, "age_ms": now - more.get("created_at", now), **unset, **more,
    }  # fmt: skip


def lines(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The cells of a table, the header apart."""
    assert (done.returncode, done.stderr) == (0, "")
    return [re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()[1:]]

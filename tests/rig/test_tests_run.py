"""tests/run, from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

RIG = Path(__file__).parent


def test_a_run_that_is_stopped_takes_its_guest_along(tmp_path: Path) -> None:
    made = subprocess.run([RIG / "tree", "bookworm"], stdout=subprocess.PIPE, text=True, check=True)
    tree = Path(made.stdout.strip())
    cache = tmp_path / "hostguard-rig"
    cache.mkdir()
    (cache / tree.name).symlink_to(tree)
    command = [str(RIG.parent / "run"), "--", "tests/unit"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert any("session starts" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)  # which ends with the last of its processes
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGTERM
    assert not list(cache.glob("guests/*/"))
    assert not list(cache.glob("logs-*"))


def test_without_the_source_of_volute_there_is_nothing_to_do(tmp_path: Path) -> None:
    command = [str(RIG.parent / "run"), "--volute", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"left out: tests/run --volute, as there is no volute-*.tar.xz in {tmp_path}\n"

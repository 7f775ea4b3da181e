"""The end of a scope's anchor when the guard is out of descriptors: it is not given up."""

from __future__ import annotations

import os
import resource
import signal
import subprocess

from hostguard.turns.adoption import _kill


def test_an_anchor_is_killed_once_a_descriptor_is_free(tmp_path):
    anchor = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "cgroup.procs").write_text(f"1\n{anchor.pid}\n")
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            assert not _kill(anchor.pid, tmp_path)
            assert anchor.poll() is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert _kill(anchor.pid, tmp_path)
        assert anchor.wait(10) == -signal.SIGKILL
    finally:
        anchor.kill()
        anchor.wait()


def test_a_process_that_left_the_scope_is_not_killed(tmp_path):
    other = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "cgroup.procs").write_text("1\n")
        assert _kill(other.pid, tmp_path)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert _kill(other.pid, tmp_path), "one that is gone is no reason to try again"

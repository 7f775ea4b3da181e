"""Memory that is locked: read back from the kernel."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest

from hostguard.linux import mlock

# In a process of its own: what is locked stays locked.
LOCK = """
from hostguard.linux import mlock
mlock.lock()
status = open("/proc/self/status").read()
print(int(status.partition("VmLck:")[2].split()[0]))
"""


def test_the_program_and_its_libraries_are_locked():
    if not mlock._unlimited():
        pytest.skip("locking memory is limited here")
    done = subprocess.run(
        [sys.executable, "-c", LOCK], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) > 4096, "kB: the interpreter alone is larger"


def test_below_a_limit_it_refuses_instead_of_failing_later(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    monkeypatch.setattr(mlock, "_CAP_IPC_LOCK", 63)  # a capability that nobody has
    with pytest.raises(OSError, match="LimitMEMLOCK=infinity or CAP_IPC_LOCK") as refused:
        mlock.lock()
    assert refused.value.errno == errno.EPERM

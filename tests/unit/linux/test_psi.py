"""Pressure stall information, as files say it, and the kernel's trigger."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from hostguard.linux import psi
from hostguard.linux.psi import Trigger, totals_us, waited_us

FILE = (
    "some avg10=1.00 avg60=0.50 avg300=0.10 total=7445221\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=5752249\n"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FILE, (7445221, "ok")),
        (FILE.splitlines()[0], (7445221, "ok")),  # of the CPU on old kernels
        (FILE.splitlines()[1], (None, "{} has no line 'some'")),
        ("", (None, "{} has no line 'some'")),
    ],
)
def test_what_a_pressure_file_says(tmp_path, text, found):
    (tmp_path / "io").write_text(text)
    us, reason = found
    assert waited_us(tmp_path / "io") == (us, reason.format(tmp_path / "io"))


def test_all_totals_of_a_pressure_file_are_read(tmp_path):
    (tmp_path / "memory").write_text(FILE)
    assert totals_us(tmp_path / "memory") == {"some": 7445221, "full": 5752249}


def test_where_there_is_no_file_the_reason_says_how_to_turn_it_on(tmp_path):
    us, reason = waited_us(tmp_path / "io")
    assert us is None
    assert reason.startswith("this kernel shows no PSI: psi=1 on the kernel's command line")


def test_without_psi_there_is_no_trigger(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    async def main():
        made = Trigger(lambda: None)
        assert made.open() == "the kernel grants no PSI trigger: No such file or directory"
        made.close()
        made.rest(60)
        made.close()

    asyncio.run(main())


def test_the_kernel_takes_what_a_trigger_is_asked_for():
    """A window below 2 s needs CAP_SYS_RESOURCE; without the NUL the kernel cuts the last digit off."""

    async def main():
        made = Trigger(lambda: None)
        told = made.open()
        made.close()
        assert told == "ok" or "No such file" in told or "not supported" in told or "denied" in told

    asyncio.run(main())
    assert psi.TRIGGER.endswith(b" 2000000\0")

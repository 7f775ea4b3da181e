"""When turns are read back, and what is told of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from hostguard.core.model import Config, Limits, Mind
from hostguard.core.settings import Settings
from hostguard.core.signals import SliceThrottled
from hostguard.linux import limits as enforce
from hostguard.linux.disk import Device
from hostguard.linux.limits import Kernel, Label, Verdict
from hostguard.telemetry.events import Event
from hostguard.turns import limit_check
from hostguard.turns.limit_check import Readback

DISK = Device("/dev/sda", "sda", "/x is on the disk sda")
TASKS = Limits(tasks_max=9)
CONFIG = Config(minds={"ada": Mind("ada", limits=TASKS)})
CGROUP = Path("/sys/fs/cgroup/turn")


class Told:
    """What a Readback emits, and the answers that it reads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reads = 0
        self.answers: list[Callable[[], tuple[Verdict, ...] | None]] = []

    def emit(self, type_: Event, text: str, **fields: Any) -> None:
        assert type_ is Event.ENFORCEMENT
        assert text.startswith(f"{fields['limit']} is {fields['label']}: ")
        self.lines.append(f"{fields['limit']} {fields['label']}")

    def read(self, device: Device, cgroup: Path, limits: Limits) -> tuple[Verdict, ...] | None:
        self.reads += 1
        assert (device, cgroup) == (DISK, CGROUP)
        return self.answers.pop(0)()

    def answer(self, *labels: Label | None) -> None:
        for label in labels:
            self.answers.append(
                lambda label=label: None if label is None else (Verdict("tasks_max", label, "w"),)
            )

    def hang(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """The next read answers "inert" once the event is set; it is waited for only 10 ms."""
        monkeypatch.setattr(limit_check, "LOOK_S", 0.01)
        go = threading.Event()

        def answer() -> tuple[Verdict, ...]:
            assert go.wait(30)
            return (Verdict("tasks_max", Label.INERT, "w"),)

        self.answers.append(answer)
        return go


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(limit_check, "_read", told.read)
    monkeypatch.setattr(limit_check, "AGAIN_S", 0.0)
    monkeypatch.setattr(
        limit_check, "read_kernel", lambda disk: Kernel(disk, controllers=frozenset({"pids"}))
    )
    return told


def run(
    told: Told, work: Callable[[Readback], Coroutine[Any, Any, None]], config: Config = CONFIG
) -> Readback:
    keeper = Readback(told)  # type: ignore[arg-type]

    async def main() -> None:
        await keeper.configure(config, DISK)
        await work(keeper)

    asyncio.run(main())
    return keeper


def test_before_a_turn_was_read_back_nothing_is_claimed_nor_told(told: Told) -> None:
    async def work(keeper: Readback) -> None:
        assert [verdict.label for verdict in keeper.verdicts] == [Label.UNKNOWN]

    run(told, work)
    assert told.lines == []


def test_each_change_is_told_once(told: Told) -> None:
    async def work(keeper: Readback) -> None:
        told.answer(
            Label.ENFORCED, Label.INERT, Label.INERT, None, Label.PARTIAL, Label.ENFORCED, Label.ENFORCED
        )
        for _ in range(len(told.answers)):
            await keeper.look(CGROUP, TASKS)
        assert not told.answers

    keeper = run(told, work)
    assert told.lines == ["tasks_max inert", "tasks_max partial", "tasks_max enforced"]
    assert keeper.verdicts == [Verdict("tasks_max", Label.ENFORCED, "w")]


def test_a_kernel_that_cannot_be_read_is_taken_for_one_that_supports_nothing(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(device: Device) -> Kernel:
        raise OSError("busy")

    monkeypatch.setattr(limit_check, "read_kernel", fails)

    async def work(keeper: Readback) -> None:
        pass

    keeper = run(told, work)
    assert [verdict.label for verdict in keeper.verdicts] == [Label.INERT]
    assert "cannot read what the kernel supports: busy" in caplog.text


def test_what_cannot_work_is_told_before_a_turn_runs_and_not_again_by_a_reload(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit_check, "read_kernel", Kernel)

    async def work(keeper: Readback) -> None:
        await keeper.configure(CONFIG, DISK)

    run(told, work)
    assert told.lines == ["tasks_max inert"]


def test_a_reload_does_not_take_a_label_for_better_before_it_is_read_back(told: Told) -> None:
    async def work(keeper: Readback) -> None:
        told.answer(Label.INERT, Label.INERT)
        await keeper.look(CGROUP, TASKS)
        await keeper.configure(CONFIG, DISK)
        assert keeper.verdicts[0].label is Label.UNKNOWN
        await keeper.look(CGROUP, TASKS)

    run(told, work)
    assert told.lines == ["tasks_max inert"]


def test_a_turn_is_read_back_once_a_minute(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_check, "AGAIN_S", 60.0)

    async def work(keeper: Readback) -> None:
        told.answer(Label.ENFORCED, Label.INERT)
        await keeper.look(CGROUP, TASKS)
        await keeper.look(CGROUP, TASKS)
        assert len(told.answers) == 1
        await keeper.configure(CONFIG, DISK)  # and after a reload
        await keeper.look(CGROUP, TASKS)
        assert not told.answers

    run(told, work)


def test_a_read_that_hangs_delays_a_turn_only_for_a_moment_and_is_not_begun_twice(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = told.hang(monkeypatch)

    async def work(keeper: Readback) -> None:
        await keeper.look(CGROUP, TASKS)
        await keeper.look(CGROUP, TASKS)
        assert told.reads == 1
        assert keeper.verdicts[0].label is Label.UNKNOWN
        go.set()
        assert keeper._look is not None
        await asyncio.wait([keeper._look])

    run(told, work)
    assert told.lines == ["tasks_max inert"]


def test_what_was_read_for_an_older_configuration_is_not_taken(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = told.hang(monkeypatch)

    async def work(keeper: Readback) -> None:
        await keeper.look(CGROUP, TASKS)
        await keeper.configure(CONFIG, Device("/dev/sdb", "sdb", "/x is on the disk sdb"))
        go.set()
        await asyncio.sleep(0.05)

    keeper = run(told, work)
    assert keeper.verdicts[0].label is Label.UNKNOWN


def test_an_error_keeps_what_is_known(told: Told) -> None:
    def fail() -> None:
        raise PermissionError

    async def work(keeper: Readback) -> None:
        told.answer(Label.INERT)
        told.answers.append(fail)
        await keeper.look(CGROUP, TASKS)
        await keeper.look(CGROUP, TASKS)
        assert keeper.verdicts[0].label is Label.INERT

    run(told, work)


def test_limits_that_no_mind_has_any_more_are_not_read(told: Told) -> None:
    async def work(keeper: Readback) -> None:
        await keeper.look(CGROUP, Limits(tasks_max=10))

    run(told, work)


def test_the_limit_of_pressure_is_labelled_too(told: Told) -> None:
    async def work(keeper: Readback) -> None:
        pass

    keeper = run(told, work, Config(pressure=Settings(tighten=1_000_000)))
    [verdict] = keeper.verdicts
    assert (verdict.limit, verdict.label) == ("tighten", Label.INERT)  # the kernel here has no io controller


def test_the_limit_of_pressure_is_read_back_from_the_slice(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = Kernel(DISK, "8:0", frozenset({"io", "memory", "pids"}))
    monkeypatch.setattr(limit_check, "read_kernel", lambda disk: number)
    limits: list[Limits] = []

    def read(device: Device, cgroup: Path, asked: Limits) -> tuple[Verdict, ...]:
        limits.append(asked)
        return (Verdict("write_bandwidth", Label.ENFORCED, "in io.max"),)

    monkeypatch.setattr(limit_check, "_read", read)

    async def work(keeper: Readback) -> None:
        [before] = keeper.verdicts
        assert before == Verdict("tighten", Label.UNKNOWN, "to be read back once it is set")
        keeper.slice_throttled(SliceThrottled(CGROUP))
        await keeper._tasks.settled(10)

    keeper = run(told, work, Config(pressure=Settings(tighten=1_000_000)))
    assert keeper.verdicts == [Verdict("tighten", Label.ENFORCED, "in io.max")]
    assert limits == [Limits(write_bandwidth=1_000_000)]


def test_it_reads_a_real_cgroup_of_this_machine_or_finds_it_gone() -> None:
    assert limit_check._read(DISK, Path("/sys/fs/cgroup/no such"), TASKS) is None
    assert enforce.judge(TASKS, Kernel(DISK), None)[0].label is Label.INERT

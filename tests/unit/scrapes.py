"""What Prometheus reads of a manager, for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from onqueue import acceptor, message
from played import sink, views_of
from prometheus_client.parser import text_string_to_metric_families

from hostguard.api.metrics import Metrics
from hostguard.core.model import Config, Mind
from hostguard.linux.disk import Device
from hostguard.pressure.sample import Disk
from hostguard.telemetry.counters import Counters
from tests.conftest import in_guest

ROOT = Path(__file__).parents[2]


MINDS = {name: Mind(name, ("/bin/true",)) for name in ("ada", "bob")}


CONFIG = Config(minds=MINDS, global_concurrent_turns=1)


on_host = pytest.mark.skipif(
    in_guest(), reason="promtool comes from Debian's mirror, and a guest has no network"
)


def exposed(manager, problems=()):
    """The page that Prometheus reads, while the status has these problems."""
    guard = Metrics(
        manager.policy, manager.live, manager.gate, manager.backlog, manager.parts.held, manager.ledger,
        manager.watcher, sink(manager, Counters), lambda: {"problems": problems, "minds": views_of(manager).minds()},
    )  # fmt: skip
    return guard.text().decode()


def scrape(manager, problems=()):
    """{(name, label value, ...): value} of every sample."""
    families = text_string_to_metric_families(exposed(manager, problems))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def promtool(*args, text=None):
    done = subprocess.run(
        [ROOT / "tests/rig/promtool", *args], input=text, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


async def send(manager, *minds, **more):
    rows = (await acceptor(manager).store(message(*minds, **more))).rows
    await manager.settled(5)
    return rows


async def end(manager, ending, mind=None):
    (turn,) = (turn for turn in manager.runner.live if mind in (None, turn.live.mind))
    manager.runner.end(turn, ending)
    await manager.queue.write(lambda db: None)
    await manager.settled(5)


class Sampler:
    """A disk that says the same each time."""

    def read(self):
        return Disk(5, 7, 1500, 2500, 0, 3, 0, flushes=2, flush_ms=10), None, None


def with_disk(manager):
    manager.watcher.sampler = Sampler()
    manager.watcher.device = Device("/dev/mmcblk0", "mmcblk0", "")

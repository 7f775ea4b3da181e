"""The sources of samples for `hostguard pressure record`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostguard import __version__
from hostguard.cli import client
from hostguard.cli.away import Away
from hostguard.cli.errors import CliError, ConnectionLost
from hostguard.config import load as config
from hostguard.core import paths
from hostguard.core.errors import SystemdFailed
from hostguard.core.model import Config
from hostguard.core.settings import Settings
from hostguard.linux import disk as device
from hostguard.pressure.rule import TICK, State, step
from hostguard.pressure.sample import Sample
from hostguard.pressure.trace import Head, sample_of, settings_of

if TYPE_CHECKING:
    from hostguard.pressure.sampler import Sampler


def from_daemon(seconds: float) -> tuple[Head, Iterator[Sample]]:
    """The daemon's samples of the last minutes, and then those of this many seconds. Raises CliError."""
    answer = client.call("GET", "/v1/pressure")
    settings = settings_of(client.call("GET", "/v1/config")["pressure"])
    return _head(answer["device"]["name"], settings), _remembered(answer["samples"], seconds)


def _remembered(before: list[Any], seconds: float) -> Iterator[Sample]:
    end = time.monotonic() + seconds
    seen = -1.0
    for value in before:
        seen = value["at"]
        yield sample_of(value)
    if not seconds:
        return
    away = Away()
    away.back()
    while time.monotonic() < end:
        try:
            # While a client records, the daemon takes samples at least once a second.
            with client.request("GET", "/v1/pressure/samples", read_s=10 * TICK) as answer:
                away.back()
                for line in answer.lines():
                    value = json.loads(line)
                    if value["at"] > seen:
                        seen = value["at"]
                        yield sample_of(value)
                    if time.monotonic() >= end:
                        return
            raise ConnectionLost()
        except CliError as error:
            away.bear(error)


def from_here(seconds: float) -> tuple[Head, Iterator[Sample]]:
    """Samples taken without the daemon, for this many seconds. Raises CliError, ConfigError."""
    from hostguard.cli.daemonless import live_scopes
    from hostguard.pressure.sampler import Sampler
    from hostguard.systemd.dbus_blocking import Bus

    found = config.load()
    disk = device.choose(found.device_path, paths.STATE)
    if disk.name is None:
        raise CliError(f"no disk to watch: {disk.reason}")
    live = 0
    with suppress(SystemdFailed), Bus() as bus:  # without systemd there are no turns
        live = len(live_scopes(bus))
    return _head(disk.name, found.pressure), _samples(Sampler(disk), live, found, seconds)


def _samples(sampler: Sampler, live: int, found: Config, seconds: float) -> Iterator[Sample]:
    """Take samples as often as the daemon does."""
    end, state = time.monotonic() + seconds, State()
    while True:
        sample = sampler.sample(live, found.global_concurrent_turns)
        state = step(state, sample, found.pressure)
        yield sample
        pause = min(state.wait, TICK, end - time.monotonic())
        if pause <= 0:
            return
        time.sleep(pause)


def _head(name: str | None, settings: Settings) -> Head:
    return Head(__version__, name, os.uname().release, settings)

"""hostguard pressure: what it asks and shows, records and replays."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from guard import wait_for
from standin import NEW_YEAR, ROOT, SHOWN, StandIn

from hostguard.core.settings import Settings
from hostguard.pressure import trace
from hostguard.pressure.sample import Disk, Sample

HEAD = trace.Head("0.1", "mmcblk0", "6.12", Settings())
DISK = Disk(0, 10, 0, 120, 120, 0, 40_960)


def stalled(seconds: int, live: int = 2, cap: int | None = 2) -> list[Sample]:
    """A disk that completes nothing, looked at each second."""
    stuck = replace(DISK, in_flight=3)
    return [
        Sample(100.0 + i, live, cap, replace(stuck, busy_ms=120 + 1000 * i), None, None)
        for i in range(seconds)
    ]


def answer(**more: Any) -> dict[str, Any]:
    shown = {
        "level": "stalled", "since": NEW_YEAR, "evidence": "3 requests in flight, none completed for 1.6 s",
        "cap": 2, "admit": 1, "configured": 8, "effective_cap": 1, "next_step_in_s": None, "psi": "ok", "disk": "ok",
        "device": {"node": "/dev/mmcblk0", "name": "mmcblk0", "reason": "/var is on the disk mmcblk0"},
        "live": 4, "in_flight": 3, "await_ms": None, "busy_percent": 100, "changes": [], "samples": [],
    }  # fmt: skip
    return {**shown, **more}


def test_it_says_how_the_disk_is_and_how_many_may_run(daemon: StandIn) -> None:
    changes = [{"at": NEW_YEAR, "level": "stalled", "cap": 2, "evidence": "3 requests \x1b[2J"}]
    daemon.answer("GET /v1/pressure", answer(changes=changes))
    done = daemon.run("pressure")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"Level: stalled since {SHOWN}",
        "Evidence: 3 requests in flight, none completed for 1.6 s",
        "Live turns: 4, which may finish; only 1 at a time now, then 2 (8 configured)",
        "Device: /dev/mmcblk0",
        "Found: /var is on the disk mmcblk0",
        "PSI: ok",
        "",
        "CHANGED              LEVEL    CAP  EVIDENCE",
        f"{SHOWN}  stalled  2    3 requests \\x1b[2J",
    ]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"level": "calm", "cap": None, "admit": None},
            "Live turns: 4, 8 configured, not limited by pressure",
        ),
        (
            {"configured": None, "cap": None, "admit": None},
            "Live turns: 4, no cap is configured, not limited by pressure",
        ),
        ({"cap": 4, "admit": 4}, "Live turns: 4, only 4 at a time now (8 configured)"),
        (
            {"configured": None, "cap": None},
            "Live turns: 4, which may finish; only 1 at a time now, then any number (no cap is configured)",
        ),
        ({"cap": None}, "Live turns: 4, which may finish; only 1 at a time now, then 8 (8 configured)"),
        ({"disk": "the kernel has no sda any more"}, "Disk: the kernel has no sda any more"),
        ({"disk": "the kernel has no sda any more", "level": "calm"}, "Level: unknown: no disk is watched"),
        ({"next_step_in_s": 12.4}, "One more: in 12s if it stays calm"),
        ({"frozen": ["a.scope", "b.scope"]}, "Frozen: a.scope, b.scope"),
        ({"tightened": True}, "Tightened: yes"),
        ({"psi": "PSI is off: psi=1 turns it on"}, "PSI: PSI is off: psi=1 turns it on"),
    ],
)
def test_each_line(daemon: StandIn, more: dict[str, Any], line: str) -> None:
    daemon.answer("GET /v1/pressure", answer(**more))
    assert line in daemon.run("pressure").stdout.splitlines()


def test_it_says_when_it_looked_last(daemon: StandIn) -> None:
    sample = asdict(replace(stalled(1)[0], at=time.clock_gettime(time.CLOCK_BOOTTIME) - 65))
    daemon.answer("GET /v1/pressure", answer(samples=[sample]))
    assert re.search(r"^Last sample: 1m \ds ago$", daemon.run("pressure").stdout, re.MULTILINE)


def test_json_is_the_answer(daemon: StandIn) -> None:
    daemon.answer("GET /v1/pressure", answer())
    assert json.loads(daemon.run("pressure", "--json").stdout) == answer()


@pytest.mark.parametrize("verb", [("pressure",), ("pressure", "--watch")])
def test_without_the_daemon_it_says_so(away: StandIn, verb: tuple[str, ...]) -> None:
    done = away.run(*verb)
    assert (done.returncode, done.stdout) == (3, "")
    assert "is not running" in done.stderr


@pytest.mark.parametrize("json_", [False, True])
def test_watch_prints_a_line_a_second_until_interrupted(daemon: StandIn, json_: bool) -> None:
    daemon.answer("GET /v1/pressure", answer(await_ms=812.4))
    command = [sys.executable, "-m", "hostguard", "pressure", "--watch", *(["--json"] if json_ else [])]
    with subprocess.Popen(
        command, cwd=ROOT, env=daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        seen = [watch.stdout.readline() for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        _, complaint = watch.communicate(timeout=20)
    assert (watch.returncode, complaint.strip()) == (130, "")
    if json_:
        assert json.loads(seen[2])["admit"] == 1
        assert "samples" not in json.loads(seen[0])
    else:
        assert re.split(r" {2,}", seen[0].strip())[:5] == ["TIME", "LEVEL", "CAP", "LIVE", "IN FLIGHT"]
        assert re.split(r" {2,}", seen[2].strip())[1:7] == ["stalled", "1", "4", "3", "812 ms", "100 %"]


# -- record


def recorded(raw: bytes) -> tuple[trace.Head, list[Sample]]:
    import io

    head, samples = trace.read(io.BytesIO(raw))
    return head, [*samples]


def serve(daemon: StandIn, remembered: list[Sample], streamed: list[Sample]) -> None:
    daemon.answer("GET /v1/pressure", answer(samples=[asdict(sample) for sample in remembered]))
    daemon.answer("GET /v1/config", {"pressure": {**asdict(Settings(floor=2)), "tighten": "unlimited"}})
    raw = b"".join(json.dumps(asdict(sample)).encode() + b"\n" for sample in streamed)
    daemon.answer("GET /v1/pressure/samples", raw)


def test_record_has_what_the_daemon_remembers_and_what_it_sees_then(daemon: StandIn, tmp_path: Path) -> None:
    samples = stalled(9)
    serve(daemon, samples[:5], samples[3:])
    done = daemon.run("pressure", "record", "--for", "30s", "-o", str(tmp_path / "t"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"9 samples in {tmp_path / 't'}\n"
    head, found = recorded((tmp_path / "t").read_bytes())
    assert (head.device, head.settings, found) == ("mmcblk0", Settings(floor=2), samples)
    assert daemon.run("pressure", "record", "--for", "30s").stdout.encode() == (tmp_path / "t").read_bytes()


def test_a_trace_that_cannot_be_written_is_a_failure(daemon: StandIn) -> None:
    serve(daemon, stalled(5), [])
    done = daemon.run("pressure", "record", "--for", "0", "-o", "/dev/full")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left on device" in done.stderr
    assert "samples in" not in done.stderr


def test_record_for_0_s_is_what_the_daemon_remembers(daemon: StandIn) -> None:
    serve(daemon, stalled(5), stalled(9))
    assert recorded(daemon.run("pressure", "record", "--for", "0").stdout.encode())[1] == stalled(5)
    assert "GET /v1/pressure/samples" not in [request for request, _ in daemon.asked]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record_without_the_daemon_looks_for_itself_and_keeps_what_it_has(
    away: StandIn, tmp_path: Path, number: signal.Signals
) -> None:
    disks = [entry.name for entry in Path("/sys/block").iterdir() if (entry / "device").exists()]
    if not disks:
        pytest.skip("there is no disk here")
    (tmp_path / "c.toml").write_text(
        f'[device]\npath = "/dev/{disks[0]}"\n[limits]\nglobal_concurrent_turns = 3\n'
    )
    env = {**away.env, "HOSTGUARD_CONFIG": str(tmp_path / "c.toml")}
    file = tmp_path / "t"
    command = [sys.executable, "-m", "hostguard", "pressure", "record", "--for", "1h", "-o", str(file)]
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as record:
        wait_for(file.exists, 60)
        time.sleep(3)
        assert file.read_bytes() == b"", "nothing is written before the end"
        record.send_signal(number)
        told = record.communicate(timeout=20)[1]
    assert record.returncode == 130
    head, found = recorded(file.read_bytes())
    assert told.strip() == f"{len(found)} samples in {file}"
    assert head.device == disks[0]
    assert len(found) >= 2
    assert {sample.cap for sample in found} == {3}


def test_record_without_a_disk_says_why(away: StandIn, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[device]\npath = "none"\n')
    away.extra["HOSTGUARD_CONFIG"] = str(tmp_path / "c.toml")
    done = away.run("pressure", "record", "--for", "1s")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no disk to watch: switched off" in done.stderr


# -- replay


@pytest.fixture
def a_stall(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"".join([trace.head_line(HEAD), *map(trace.sample_line, stalled(6))]))
    return file


def test_replay_prints_each_change(away: StandIn, a_stall: Path) -> None:
    done = away.run("pressure", "replay", str(a_stall))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "device mmcblk0, Linux 6.12, hostguard 0.1",
        "",
        "SECONDS  LEVEL    CAP  ADMIT  LIVE  EVIDENCE",
        "0.00     calm     -    -      2     first sample",
        "2.00     stalled  1    1      2     3 requests in flight, none completed for 2.0 s",
        "5.00     stalled  1    1      2     3 requests in flight, none completed for 5.0 s",
    ]


def test_replay_with_other_settings(away: StandIn, a_stall: Path) -> None:
    done = away.run(
        "pressure", "replay", str(a_stall), "--json", "--set", "stall_after=3s", "--set", "floor = 2"
    )
    found = json.loads(done.stdout)
    assert (found["settings"]["stall_after"], found["settings"]["floor"]) == (3.0, 2)
    assert found["trace"]["settings"]["stall_after"] == 1.5
    assert [(one["after"], one["level"], one["cap"]) for one in found["changes"]] == [
        (0, "calm", None),
        (3, "stalled", None),
        (5, "stalled", None),
    ]


def test_replay_reads_standard_input(away: StandIn, a_stall: Path) -> None:
    with a_stall.open() as file:
        assert "stalled" in away.run("pressure", "replay", "-", stdin=file).stdout


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("floor", "invalid setting 'floor': use KEY=VALUE"),
        ("flour=1", "flour is not a key of [pressure]"),
        ("floor=0", "floor: allowed: a whole number from 1"),
        ("floor=", "floor: allowed: a whole number from 1"),
        ("calm_await=1s", "calm_await 1 s is not below strained_await 0.5 s"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(away: StandIn, a_stall: Path, setting: str, told: str) -> None:
    done = away.run("pressure", "replay", str(a_stall), "--set", setting)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_what_is_no_trace_is_told_with_its_line(away: StandIn, a_stall: Path) -> None:
    with a_stall.open("a") as file:
        file.write("\x1b[2J\n")
    done = away.run("pressure", "replay", str(a_stall))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"hostguard: {a_stall}: line 8: no JSON\n"


def test_completion_offers_the_keys(away: StandIn) -> None:
    env = {**away.env, "_HOSTGUARD_COMPLETE": "bash_complete", "COMP_CWORD": "5"}
    env["COMP_WORDS"] = "hostguard pressure replay x --set str"
    done = subprocess.run(
        [sys.executable, "-c", "from hostguard.cli.group import cli; cli(prog_name='hostguard')"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.findall(r"plain,(\S+)", done.stdout) == ["strained_after=", "strained_await=", "strained_psi="]

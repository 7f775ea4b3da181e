"""The guard's event loop touches no disk, and nothing is imported late."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guard import Guard, drop_in, wait_for
from resident_host import ResidentHost

IMPORTS = Path("/run/imports")
TRACE = Path("/run/trace")
# Kept in memory by the kernel, or (/run) a tmpfs.
IN_MEMORY = ("/proc/", "/sys/", "/run/", "/dev/", "/memfd:")
BY_NAME = "%file"
BY_DESCRIPTOR = "read,pread64,readv,write,pwrite64,writev,fsync,fdatasync,ftruncate,fallocate,getdents64,mmap"


@pytest.fixture
def residents(guard: Guard) -> Iterator[ResidentHost]:
    with ResidentHost(guard) as host:
        yield host


def test_the_event_loop_touches_no_disk_and_nothing_is_imported_late(residents: ResidentHost) -> None:
    """Whatever it is asked. Imports count in any thread: that of a library holds up all of them."""
    host = residents
    IMPORTS.touch()
    with drop_in(f"Environment=PYTHONPROFILEIMPORTTIME=1\nStandardError=append:{IMPORTS}"):
        mind = host.minds.add("m", config='user = "nobody"\ndirectory = "/"\n')
        routes = host.minds.folder / "routes.json"
        host.minds.folder.chmod(0o755)
        routes.write_text('{"rules": [{"channel": "#x", "session": "s"}]}')
        mind.config += f'routes = "{routes}"\n'
        host.start(
            '[minds.a]\ncommand = ["/bin/sleep", "1"]\nuser = "root"\n[channels."#x"]\nminds = ["a", "m"]\n'
        )
        before = IMPORTS.read_text()
        assert "hostguard.gate.dispatcher" in before
        with traced_loop(host.guard.pid):
            busy_life(host, routes)
        late = IMPORTS.read_text().removeprefix(before)
    assert (late, touched(TRACE.read_text())) == ("", [])


@contextmanager
def traced_loop(pid: int) -> Iterator[None]:
    """Have the system calls of the main thread, and of no other, written to TRACE."""
    calls = f"trace={BY_NAME},{BY_DESCRIPTOR}"
    strace = subprocess.Popen(["strace", "-y", "-qq", "-s", "200", "-e", calls, "-o", TRACE, "-p", str(pid)])
    try:
        wait_for(lambda: f"TracerPid:\t{strace.pid}" in Path(f"/proc/{pid}/status").read_text())
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait(10)


def touched(trace: str) -> list[str]:
    """The calls that name a file which is not in memory."""
    assert len(trace.splitlines()) > 300
    found = []
    for line in trace.splitlines():
        paths = re.findall(r"\b\d+<(/[^>]*)>", line)
        if not line.startswith(tuple(f"{call}(" for call in BY_DESCRIPTOR.split(","))):
            paths += re.findall(r'"(/[^"]*)"', line)
        if any(not f"{path}/".startswith(IN_MEMORY) for path in paths):
            found.append(line)
    return found


def busy_life(host: ResidentHost, routes: Path) -> None:
    """Ask everything of the guard, and let go wrong what can."""
    get, post = host.api.get, host.api.post
    both = [
        row["id"] for row in host.post("/v1/deliveries", to="#x", content="hello", sender="ann")["deliveries"]
    ]
    waits = host.send("a", "waits")
    for path in (
        "status",
        "turns",
        "limits",
        "minds",
        "config",
        "schedules",
        "events?follow=0",
        "deliveries?state=all",
    ):
        assert get(f"/v1/{path}").status_code == 200
    for path in ("nothing", f"deliveries/{waits}", f"deliveries/{waits}/why", "deliveries/999", "turns/999"):
        get(f"/v1/{path}")
    post("/v1/deliveries", content=b"{")
    post("/v1/deliveries", json={"to": "@nobody", "content": ""})
    host.done(*both)
    host.done(waits)
    routes.write_text('{"rules": [{"channel": "#x"}, {"channel": "#y", "batch": {"debounce": 0.2}}]}')
    wait_for(lambda: host.post("/v1/minds/m/route", channel="#y")["mode"] == "batch")
    batched = host.send("m", "in a batch", channel="#y", sender="ann")
    host.done(batched, state="batched")
    gated = host.send("m", "no route", channel="#z", sender="ann")
    host.post(f"/v1/deliveries/{gated}/cancel")
    host.post(
        "/v1/schedules", name="tidy", mind="m", cron="0 3 * * *", timezone="Europe/Berlin", message="tidy"
    )
    host.post("/v1/schedules", name="script", mind="a", cron="@daily", script="echo said; exit 3")
    for name in ("tidy", "script"):
        rows = host.post(f"/v1/schedules/{name}/run")["deliveries"]
        host.done(*(row["id"] for row in rows))
        assert host.api.delete(f"/v1/schedules/{name}").status_code == 200
    host.post("/v1/pause")
    held = host.send("a", "held")
    host.api.patch("/v1/limits", json={"name": "global_concurrent_turns", "value": 1})
    host.post("/v1/resume")
    host.guard.reload()
    stopped = host.get(f"/v1/deliveries/{held}?wait_s=0")["turn"] or str(held)
    wait_for(lambda: post(f"/v1/turns/{stopped}/stop").is_success)
    host.done(held)
    host.post(f"/v1/deliveries/{held}/retry")
    host.done(held)
    run = ["hostguard", "run", "--mind", "a", "--", "true"]
    assert subprocess.run(run, check=False).returncode == 0
    host.post("/v1/minds/m/sleep")
    wait_for(
        lambda: any(
            one["name"] == "m" and one["state"] == "asleep" for one in host.get("/v1/minds")["minds"]
        ),
        30,
    )
    host.post("/v1/minds/m/wake")
    host.minds["m"].control(refuse=1)
    host.send("m", "refused", channel="#x")
    wait_for(lambda: host.events("failed"))
    host.guard.configure("wrong")
    assert post("/v1/reload").status_code == 400

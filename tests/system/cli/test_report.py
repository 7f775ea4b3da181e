"""The report of a real guard: turns, holds and a stall of the card; as a file, live, and after a restart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
from guard import Guard, wait_for
from guarded import GuardedHost
from pressed_host import QUICK, PressedHost

from hostguard.api.volute import token_hash

WEB = '[web]\nlisten = "127.0.0.1:4300"\n'
PAGE = "http://127.0.0.1:4300/"
CONFIG = f"""
[limits]
global_concurrent_turns = 1
[minds.ada]
command = ["/bin/sh", "-c", "head -c 3M /dev/zero >/disk/x; sync /disk/x; rm /disk/x; sleep 0.5"]
user = "root"
[minds.bob]
command = ["/bin/sleep", "0.2"]
user = "root"
{WEB}token = "sha256:{token_hash("sesame")}"
"""


def ask(method: str = "GET", path: str = "", **headers: str) -> httpx.Response:
    return httpx.request(method, PAGE + path, headers=headers, timeout=60, trust_env=False, verify=False)


def test_turns_and_holds_are_told_and_kept(guard: Guard, tmp_path: Path) -> None:
    guard.start(CONFIG)
    host = GuardedHost(guard)
    host.done(*[host.send(name, session="$new") for name in ("@ada", "@bob", "@ada", "@bob")])

    def told(report: Any) -> dict[str, Any]:
        assert report["complete"]
        minds: dict[str, Any] = {mind["name"]: mind for mind in report["minds"]}
        assert [minds[name]["turns"] for name in ("ada", "bob")] == [2, 2]
        return minds

    before = told(host.get("/v1/report?since_s=3600"))
    assert before["ada"]["write_bytes"] >= 6 << 20
    assert before["ada"]["cpu_ms"] is not None
    assert before["ada"]["run_ms"] >= 1000
    assert before["bob"]["held_for"] == "global_cap"
    assert before["bob"]["held_p95_ms"] >= 500
    file = tmp_path / "report.html"
    guard.cli("report", "-o", str(file))
    assert "no slot free" in file.read_text()
    guard.restart()
    after = host.get("/v1/report?since_s=3600")
    assert told(after) == before
    assert max(held or 0 for held in after["held"]) >= 1  # of the guard before this one
    host.api.close()


def test_the_page_is_live_and_only_the_token_acts(guard: Guard) -> None:
    guard.start(CONFIG.replace(WEB, "[web]\n"))
    host = GuardedHost(guard)
    assert "web" not in guard.cli("status").stdout
    try:
        ask()
        raise AssertionError("it listens though it is not told to")
    except httpx.ConnectError:
        pass
    guard.configure(CONFIG)
    guard.reload()
    page = ask()
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert ask(Host="evil.example").status_code == 403
    assert ask(Origin="http://evil.example").status_code == 403
    assert ask("POST", "v1/pause").status_code == 401
    assert host.get("/v1/status")["state"] == "running"
    assert ask("POST", "v1/pause", Authorization="Bearer sesame").status_code == 200
    assert host.get("/v1/status")["state"] == "paused"
    assert "all minds: hostguard resume" in ask().text
    assert ask("POST", "v1/resume", Authorization="Bearer sesame").status_code == 200
    assert host.get("/v1/status")["state"] == "running"
    assert ask("POST", "v1/turns/99/stop", Authorization="Bearer sesame").status_code == 404
    host.api.close()


def test_a_stall_is_told_while_it_lasts_and_after_a_restart(pressed: PressedHost) -> None:
    """The database is on the card that stops."""
    pressed.stall(QUICK + WEB)
    wait_for(lambda: pressed.level() == "stalled")
    page = ask()
    assert page.status_code == 200
    assert "Trouble: <b>Disk</b> stalled" in page.text
    assert re.search("The guard's response: allowed [0-9] turns? at a time, not 6", page.text)
    now = pressed.get("/v1/report")["incidents"][0]
    assert (now["level"], now["until"], now["configured"]) == ("stalled", None, 6)
    assert pressed.guard.cli("report", "-o", "-").stdout.endswith("</html>\n")

    pressed.card.go()
    wait_for(lambda: pressed.level() == "calm")
    over = pressed.get("/v1/report")["incidents"][0]
    assert over["at"] == now["at"] < over["until"]
    assert over["cap"] < 6
    assert re.search(r"(none|not) completed for [0-9.]+ s$", over["evidence"])
    pressed.guard.restart()
    pressed.guard.wait_ready()
    after = pressed.get("/v1/report")
    assert over in after["incidents"]
    assert "stalled" in after["level"]
    assert max(took or 0 for took in after["await_ms"]) > 1000
    assert "a" in [mind["name"] for mind in after["minds"]]


def test_a_command_run_by_hand_is_accounted_for_by_its_scope(guard: Guard) -> None:
    """As far as systemd has left the scope in place until the guard looked: so more than once."""
    guard.start(CONFIG)
    busy = ("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done")
    host = GuardedHost(guard)
    with host.api as api:
        for count in range(1, 20):
            guard.cli("run", "--mind", "bob", "--", *busy)
            host.done(count)
            mind = api.get(f"/v1/report?since_s={3600 + count}").json()["minds"][0]  # anew each time
            assert (mind["name"], mind["turns"]) == ("bob", count)
            if mind["cpu_ms"] is not None:
                break
    assert mind["cpu_ms"] >= 20
    assert mind["write_bytes"] is None  # no guest has the io controller; see usage.py

"""Random histories of the whole guard: sends of every kind, sleeps, pauses, caps, routes, kills, restarts.

What holds at the end, whatever came: nothing is lost, nothing is taken twice, what names its session is taken
in order, no more turns than the cap run at once, and no hold counted as an attempt. The clock is not turned
here (it is the machine's own); test_scheduler.py does that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guard import DISK, Guard, wait_for
from guarded import LONG_S, overlaps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from resident_host import ResidentHost

MINDS, CAP = ("a", "b", "c"), 2
ROUTES = {
    "open": {"gateUnmatched": False},
    "gate": {"rules": []},
    "by sender": {"rules": [{"sender": "*", "session": "of-${sender}"}]},
    "fresh": {"rules": [{"channel": "*", "session": "$new"}]},
    "batch": {
        "rules": [{"channel": "*", "session": "gathered"}],
        "sessions": {"gathered": {"delivery": {"mode": "batch", "debounce": 0.2, "maxWait": 2}}},
    },
}
mind, session = st.sampled_from(MINDS), st.sampled_from(["main", "other"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), mind, session, st.booleans()),
        st.tuples(st.just("send"), mind, session, st.booleans()),
        st.tuples(st.just("direct"), mind),
        st.tuples(st.just("channel")),
        st.tuples(st.just("system")),
        st.tuples(st.just("schedule")),
        st.tuples(st.just("sleep"), mind),
        st.tuples(st.just("wake"), mind),
        st.tuples(st.just("pause"), st.none() | mind),
        st.tuples(st.just("resume"), st.none() | mind),
        st.tuples(st.just("cap"), st.integers(0, CAP)),
        st.tuples(st.just("routes"), mind, st.sampled_from(sorted(ROUTES))),
        st.tuples(st.just("kill")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("reload")),
    ),
    min_size=15,
    max_size=40,
)
CHANNEL = '[channels."#all"]\nminds = ["a", "b", "c"]\n'
SCHEDULE = '[schedules.tick]\nmind = "a"\ncron = "0 0 1 1 *"\nmessage = "tick"\n'


@pytest.fixture
def host(guard: Guard) -> Iterator[ResidentHost]:
    with ResidentHost(guard) as host:
        yield host


class History:
    """Does the steps, and remembers each row that was accepted."""

    def __init__(self, host: ResidentHost) -> None:
        self.host = host
        self.sent = 0
        self.rows: list[Any] = []

    def do(self, what: str, *args: Any) -> None:
        getattr(self, what)(*args)

    def _send(self, to: str, **fields: Any) -> None:
        self.sent += 1
        body = {
            "to": to,
            "content": f"text {self.sent}",
            "key": f"key {self.sent}",
            "sender": "eve",
            **fields,
        }
        self.rows += self.host.post("/v1/deliveries", **body)["deliveries"]

    def send(self, to: str, session: str, interrupt: bool) -> None:
        self._send(to, session=session, interrupt=interrupt)

    def direct(self, to: str) -> None:
        self._send(to)

    def channel(self) -> None:
        self._send("#all")

    def system(self) -> None:
        self._send("#system")

    def schedule(self) -> None:
        self.rows += self.host.post("/v1/schedules/tick/run")["deliveries"]

    def sleep(self, name: str) -> None:
        self.host.post(f"/v1/minds/{name}/sleep")

    def wake(self, name: str) -> None:
        self.host.post(f"/v1/minds/{name}/wake")

    def pause(self, name: str | None) -> None:
        self.host.post("/v1/pause", mind=name)

    def resume(self, name: str | None) -> None:
        self.host.post("/v1/resume", mind=name)

    def cap(self, value: int) -> None:
        answer = self.host.api.patch(
            "/v1/limits", json={"name": "global_concurrent_turns", "mind": None, "value": value}
        )
        assert answer.is_success, answer.text

    def routes(self, name: str, which: str) -> None:
        path(name).write_text(json.dumps(ROUTES[which]))

    def kill(self) -> None:
        self.host.kill()

    def restart(self) -> None:
        self.host.guard.restart()

    def reload(self) -> None:
        self.host.guard.reload()

    def calm(self) -> None:
        """Let everything go, and wait until nothing waits any more."""
        self.cap(CAP)
        self.resume(None)
        for name in MINDS:
            self.resume(name)
            self.routes(name, "open")
        wait_for(lambda: not self._asleep(), LONG_S)
        wait_for(lambda: not self.host.get("/v1/deliveries")["deliveries"], LONG_S)
        wait_for(lambda: not self.host.turns(), LONG_S)

    def _asleep(self) -> list[str]:
        found = [name for name in MINDS if self.host.get("/v1/minds") and self._sleeps(name)]
        for name in found:
            self.wake(name)
        return found

    def _sleeps(self, name: str) -> bool:
        [one] = [one for one in self.host.get("/v1/minds")["minds"] if one["name"] == name]
        return bool(one["sleep"] != "awake")


def path(name: str) -> Path:
    return DISK / f"routes-of-{name}.json"


def taken(host: ResidentHost, name: str) -> list[tuple[str, str]]:
    """(session, content) of all that the mind took, those in batches, too, in order."""
    found = []
    for line in host.minds[name].taken():
        if line["batch"]:
            for messages in line["batch"]["channels"].values():
                found += [(line["session"], message["content"]) for message in messages]
        else:
            found.append((line["session"], line["content"]))
    return found


def test_nothing_is_lost_or_doubled_whatever_happens(host: ResidentHost) -> None:
    for name in MINDS:
        path(name).write_text(json.dumps(ROUTES["open"]))
        # A mind gives its done up after three tries, and a guard on a busy machine may be away for longer.
        host.minds.add(name, work=0.05, config=f'routes = "{path(name)}"\nuser = "root"\nidle_end = 3\n')
    host.start(CHANNEL + SCHEDULE, global_concurrent_turns=CAP)
    history = History(host)

    @settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def run(steps: list[tuple[Any, ...]]) -> None:
        for step in steps:
            history.do(*step)
        history.calm()
        check(host, history)

    run()
    assert history.rows


def check(host: ResidentHost, history: History) -> None:
    rows = {row["id"]: row for row in host.rows()}
    assert {row["id"] for row in history.rows} <= rows.keys(), "a row is lost"
    for row in rows.values():
        # A mind that is woken before it was told to sleep is not told.
        ends = ("cancelled",) if row["kind"] == "lifecycle" else ()
        assert row["state"] in ("done", "batched", "skipped", *ends), row
        assert row["attempts"] == 0, row
    for name in MINDS:
        got = taken(host, name)
        texts = [content for _, content in got if content.startswith("text ")]
        assert len(set(texts)) == len(texts), "taken twice"
        mine = [row for row in history.rows if row["mind"] == name and row["kind"] != "schedule"]
        wanted = [rows[row["id"]] for row in mine if rows[row["id"]]["state"] != "skipped"]
        contents = {row["id"]: f"text {row['key'].removeprefix('key ')}" for row in wanted}
        assert sorted(texts) == sorted(contents.values()), "lost, or not for it"
        for session in ("main", "other"):
            named = [
                contents[row["id"]]
                for row in wanted
                if row["session"] == session and row["kind"] == "message"
            ]
            order = [content for where, content in got if where == session and content in set(named)]
            # A message without a session of its own may come to main by another way, later.
            assert order == named or session == "main", f"order of {name}/{session}"
    spans = [(row["started_at"], row["ended_at"], row["turn"]) for row in rows.values() if row["turn"]]
    turns: dict[str, tuple[int, int]] = {}
    for begun, ended, turn in spans:
        first, last = turns.get(turn, (begun, ended))
        turns[turn] = (min(first, begun), max(last, ended))
    assert overlaps(list(turns.values())) <= CAP

"""Idempotency keys on a whole host: a message that is sent again runs once, long after its row is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from guard import Guard, wait_for
from guarded import LONG_S
from scripted_host import ScriptedHost
from times import now

HISTORY = 50
OTHERS = 260


@pytest.fixture(scope="module")
def scripted(shared_guard: Guard) -> Iterator[ScriptedHost]:
    with ScriptedHost(shared_guard) as scripted:
        scripted.start("ab", history_rows=HISTORY)
        yield scripted


def ask(scripted: ScriptedHost, **fields: Any) -> Any:
    return scripted.api.post("/v1/deliveries", json={"to": "@a", "content": ":", **fields})


def fill_history(scripted: ScriptedHost) -> None:
    """Let so many other rows end that the history has forgotten what was before."""
    before = scripted.send("@a")
    scripted.done(before)
    for number in range(OTHERS):  # cancelled at once: they need no turn each
        scripted.post(f"/v1/deliveries/{scripted.send('@b', str(number), not_before=now() + 10**9)}/cancel")
    wait_for(lambda: scripted.api.get(f"/v1/deliveries/{before}").status_code == 404, LONG_S)


def test_a_key_is_known_after_the_history_has_forgotten_its_row(scripted: ScriptedHost) -> None:
    """With history_rows = 50 the same message and key ran twice after 260 other rows."""
    good, bad = scripted.send("@a", ":", key="good"), scripted.send("@a", "exit 3", key="bad")
    scripted.done(good, bad)
    fill_history(scripted)
    ran = scripted.order()
    for again in ("at work", "killed"):
        if again == "killed":
            scripted.kill()
        answer = ask(scripted, key="good")
        assert answer.status_code == 200
        [row] = answer.json()["deliveries"]
        assert (row["id"], row["state"], row["result"]["exit"]) == (good, "done", 0)
        other = ask(scripted, key="good", content="exit 1")
        assert (other.status_code, other.json()["differs"]) == (409, ["content"])
    sent = scripted.guard.cli("send", "@a", ":", "--key", "good", "--wait")
    assert sent.stdout == f"{good} a done: exit status 0\n"
    failed = scripted.guard.cli("send", "@a", "exit 3", "--key", "bad", "--wait", check=False)
    assert (failed.returncode, failed.stdout) == (1, f"{bad} a done: exit status 3\n")
    assert scripted.order() == ran, "nothing ran again"
    left = scripted.sql(
        f"SELECT key FROM keys WHERE left_at IS NOT NULL AND delivery >= {good} ORDER BY delivery"
    )
    assert left == [("good",), ("bad",)]


@pytest.mark.parametrize(
    ("field", "value", "option", "named"),
    [
        ("not_before", 2_000_000_000_000, ("--at", "2033-05-18T03:33:20Z"), "--at"),
        ("expires_at", 2_000_000_000_000, ("--expires", "2033-05-18T03:33:20Z"), "--expires"),
        ("whileSleeping", "skip", ("--while-sleeping", "skip"), "--while-sleeping"),
        ("interrupt", True, ("--interrupt",), "--interrupt"),
        ("session", "s", ("--session", "s"), "--session"),
        ("sender", "eve", ("--sender", "eve"), "--sender"),
        ("kind", "notice", (), ""),
    ],
)
def test_another_request_with_the_key_is_refused_and_says_what_differs(
    scripted: ScriptedHost, field: str, value: Any, option: tuple[str, ...], named: str
) -> None:
    key = f"k-{field}"
    row = scripted.send("@a", ":", key=key)
    scripted.done(row)
    ran = scripted.order()
    for _ in range(2):
        answer = ask(scripted, key=key, **{field: value})
        assert answer.status_code == 409
        assert (answer.json()["code"], answer.json()["differs"]) == ("conflict", [field])
        assert answer.json()["delivery"] == row
    if option:
        said = scripted.guard.cli("send", "@a", ":", "--key", key, *option, check=False)
        assert (said.returncode, said.stdout) == (1, "")
        assert (
            f"the key {key} was used for another message, delivery {row}; different here: {named}"
            in said.stderr
        )
    assert ask(scripted, key=key).status_code == 200
    assert scripted.order() == ran


def test_a_message_is_known_also_once_it_would_have_expired(scripted: ScriptedHost) -> None:
    ends = now() + 5_000
    row = scripted.send("@a", ":", key="expires", expires_at=ends)
    scripted.done(row)
    ran = scripted.order()
    wait_for(lambda: now() > ends)
    again = ask(scripted, key="expires", expires_at=ends)
    assert (again.status_code, again.json()["deliveries"][0]["state"]) == (200, "done")
    assert ask(scripted, key="new", expires_at=ends).status_code == 400
    assert scripted.order() == ran


def test_an_empty_key_is_refused(scripted: ScriptedHost) -> None:
    ran = scripted.order()
    assert ask(scripted, key="").status_code == 400
    said = scripted.guard.cli("send", "@a", ":", "--key", "", check=False)
    assert (said.returncode, "key is empty" in said.stderr) == (2, True)
    assert scripted.order() == ran


def test_a_row_that_is_tried_again_keeps_its_key(scripted: ScriptedHost) -> None:
    row = scripted.send("@a", ":", key="again")
    scripted.done(row)
    scripted.post(f"/v1/deliveries/{row}/retry")
    scripted.done(row)
    fill_history(scripted)
    assert ask(scripted, key="again").json()["deliveries"][0]["id"] == row
    assert scripted.order().count(row) == 2


def test_nobody_uses_up_the_time_of_a_schedule(scripted: ScriptedHost) -> None:
    """Its key was in the senders' own, and a time whose key was known counted as fired."""
    at = now() + 3000
    scripted.post("/v1/schedules", name="tea", mind="a", at=at, script="true")
    scripted.done(scripted.send("@a", ":", key=f"schedule:tea:{at}"))
    wait_for(
        lambda: [r for r in scripted.get("/v1/deliveries?state=done")["deliveries"] if r["kind"] == "script"],
        LONG_S,
    )
    assert scripted.get("/v1/schedules") == {"schedules": []}

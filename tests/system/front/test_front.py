"""The guard in front of a running Volute: messages to its minds are kept, gated and sent on as they came."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import nft
import pytest
from front_host import UNIT, FrontHost
from guard import Guard, systemctl, wait_for
from guarded import LONG_S
from nft import FIRST

SHARES_GUARD = True


@pytest.fixture(scope="module", autouse=True)
def _socket(_installed: None) -> Iterator[None]:
    systemctl("start", "hostguard-front.socket")
    yield
    systemctl("stop", "hostguard-front.socket")


@pytest.fixture
def front(guard: Guard) -> Iterator[FrontHost]:
    with FrontHost(guard) as front:
        yield front


def test_a_message_is_kept_answered_as_the_mind_would_and_sent_on(front: FrontHost) -> None:
    front.start("ada")
    said = front.tell("ada", "hello !work=0.2", session="chat", sender="bob", channel="#x")
    assert (said["status"], said["body"]) == (200, '{"ok":true}')
    (row,) = front.rows()
    assert (row["mind"], row["session"], row["sender"]) == ("ada", "chat", "bob")
    (ended,) = front.done(row["id"])
    assert ended["result"]["outcome"] == "done"  # it came by the daemon's stream
    (got,) = front.log("ada", "message")
    assert got["content"] == "hello !work=0.2"
    assert got["body"] == ["channel", "content", "sender", "session"]  # nothing was added or left out
    assert (got["key"], got["turn"]) == (None, None)


def test_turns_of_volute_are_gated_and_in_scopes_like_any_other(front: FrontHost) -> None:
    front.start("ada", "bob", global_concurrent_turns=1)
    front.tell("ada", "first !work=1", session="a")
    wait_for(lambda: front.turns(), LONG_S)
    front.tell("bob", "second !work=0.1")
    front.tell("ada", "folds !work=0.1", session="a")
    (turn,) = front.turns()
    scope = turn["unit"]
    wait_for(lambda: front.child("ada") == scope, LONG_S)
    (waits,) = front.get("/v1/deliveries?mind=bob")["deliveries"]
    assert front.why(waits["id"]) == "global_cap"
    front.done(*(row["id"] for row in front.rows()))
    wait_for(lambda: front.child("ada") == UNIT.name, LONG_S)
    assert front.contents("ada") == ["first !work=1", "folds !work=0.1"]
    assert front.contents("bob") == ["second !work=0.1"]


def test_a_mind_that_volute_has_stopped_gets_what_was_held_once_it_is_back(front: FrontHost) -> None:
    front.start("ada")
    front.volute("stop", name="ada")
    for number in range(3):
        assert front.tell("ada", f"{number}")["status"] == 200
    first = front.rows()[0]["id"]
    wait_for(lambda: front.why(first) == "mind_down", LONG_S)
    front.volute("start", name="ada")  # as Volute does: its health must fail before
    front.done(*(row["id"] for row in front.rows()))
    assert front.contents("ada") == ["0", "1", "2"]


def test_a_mind_that_is_stopped_in_mid_turn_leaves_no_process_in_its_scope(front: FrontHost) -> None:
    front.start("ada")
    front.tell("ada", "long !work=60")
    wait_for(lambda: front.turns(), LONG_S)
    (turn,) = front.turns()
    wait_for(lambda: front.child("ada") == turn["unit"], LONG_S)
    front.volute("stop", name="ada")
    wait_for(lambda: not front.turns(), LONG_S)
    assert front.guard.scopes() == []


def test_a_new_mind_is_known_without_a_reload_and_another_port_is_passed_through(front: FrontHost) -> None:
    front.start("ada")
    front.add("eve")
    front.volute("start", name="eve")
    assert front.tell("eve", "hello")["status"] == 200
    front.done(*(row["id"] for row in front.rows()))
    assert front.contents("eve") == ["hello"]
    with socket.create_server(("127.0.0.1", FIRST + 50)) as server:
        server.settimeout(LONG_S)
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        answer = httpx.post(
            f"http://127.0.0.1:{FIRST + 50}/message", json={}, timeout=LONG_S, trust_env=False
        )
    assert (answer.status_code, answer.text) == (201, "by itself")
    assert len(front.rows()) == 1


def _answer(server: socket.socket) -> None:
    client, _ = server.accept()
    with client:
        client.recv(65536)
        client.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\nConnection: close\r\n\r\nby itself")


def test_a_message_comes_by_each_address_of_the_host(front: FrontHost) -> None:
    front.start("ada")
    subprocess.run(["ip", "address", "add", "10.9.9.9/32", "dev", "lo"], check=True)
    try:
        for host in ("127.0.0.1", "[::1]", "10.9.9.9"):
            answer = httpx.post(
                f"http://{host}:{FIRST}/message", json={"content": host}, timeout=LONG_S, trust_env=False
            )
            assert answer.json() == {"ok": True}
    finally:
        subprocess.run(["ip", "address", "del", "10.9.9.9/32", "dev", "lo"], check=True)
    front.done(*(row["id"] for row in front.rows()))
    assert front.contents("ada") == ["127.0.0.1", "[::1]", "10.9.9.9"]


def test_while_it_cannot_be_stored_a_message_waits_without_an_answer(front: FrontHost) -> None:
    front.start("ada", rows_per_mind=1)
    front.post("/v1/pause", mind="ada")
    assert front.tell("ada", "first", session="a")["status"] == 200
    answers: list[int] = []
    telling = threading.Thread(
        target=lambda: answers.append(front.tell("ada", "second", session="b")["status"])
    )
    telling.start()
    wait_for(lambda: "waits without an answer" in json.dumps(front.guard.journal("PRIORITY=4")), LONG_S)
    assert answers == []
    assert len(front.rows()) == 1
    front.post("/v1/resume", mind="ada")
    telling.join(LONG_S)
    assert answers == [200]
    front.done(*(row["id"] for row in front.rows()))
    assert front.contents("ada") == ["first", "second"]


def test_the_guards_own_connection_does_not_come_back_to_it(front: FrontHost) -> None:
    front.start("ada")
    nft.load(nft.TABLE.replace("meta mark 0x4847 return", ""))
    assert front.tell("ada", "hello")["status"] == 200
    (row,) = front.rows()
    wait_for(lambda: front.why(row["id"]) == "mind_down", LONG_S)
    assert len([*Path(f"/proc/{front.guard.pid}/fd").iterdir()]) < 100
    nft.load()
    front.volute("stop", name="ada")
    front.volute("start", name="ada")
    front.done(row["id"])
    assert front.contents("ada") == ["hello"]


def test_kills_of_the_guard_lose_nothing_that_was_answered_and_keep_the_order(front: FrontHost) -> None:
    front.start("ada", "bob", work=0.01, global_concurrent_turns=1)
    answers: list[tuple[str, int]] = []
    stop = threading.Event()

    def tell(name: str) -> None:
        number = 0
        while not stop.is_set():
            answers.append((f"{name} {number}", front.tell(name, f"{name} {number}", session="s")["status"]))
            number += 1

    telling = [threading.Thread(target=tell, args=(name,)) for name in ("ada", "bob")]
    for thread in telling:
        thread.start()
    for kills in range(1, 4):
        before = len(answers)
        wait_for(lambda before=before, kills=kills: len(answers) > before + 3 * kills, LONG_S)  # type: ignore[misc]
        front.kill()
    stop.set()
    for thread in telling:
        thread.join(LONG_S)
    # A kill between the arrival of a message and its commit resets the connection: Volute knows that it failed.
    kept = [text for text, status in answers if status == 200]
    assert len(answers) - len(kept) <= 2 * 3
    wait_for(lambda: not front.rows("queued") and not front.rows("delivering"), LONG_S)
    for name in ("ada", "bob"):
        got, sent = front.contents(name), [text for text in kept if text.startswith(name)]
        assert [text for text in dict.fromkeys(got) if text in kept] == sent  # none is lost, in order
        assert len(got) - len({*got}) <= 3  # a message that was on its way in a kill comes again

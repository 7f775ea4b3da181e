"""The minds' endpoint on real sockets: who may say what."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from minds_endpoint import TOKENS, on_host
from until import until

from hostguard.api import volute
from hostguard.core.errors import unavailable

# -- events


@pytest.mark.parametrize(
    ("body", "headers", "call"),
    [
        ({"type": "done", "session": "s"}, {}, ("done", "ann", "s", None, None)),
        ({"type": "done"}, {"X_Volute_Session": "s"}, ("done", "ann", "s", None, None)),
        ({"type": "done"}, {}, ("done", "ann", None, None, None)),
        ({"type": "done", "session": ""}, {}, ("done", "ann", None, None, None)),
        # The header is what the sending process last worked on, the body what the event is about.
        ({"type": "done", "session": "s"}, {"X_Volute_Session": "t"}, ("done", "ann", "s", None, None)),
        (
            {"type": "done", "session": "s", "messageId": "m", "covers": ["m"]},
            {"X_Hostguard_Turn": "5.0"},
            ("done", "ann", "s", "m", "5.0"),
        ),
        ({"type": "done", "session": "s", "endsTurn": True}, {}, ("done", "ann", "s", None, None)),
        ({"type": "done", "session": "s", "endsTurn": False}, {}, ("heard", "ann", "s")),
        ({"type": "text", "session": "s", "content": "hello"}, {}, ("heard", "ann", "s")),
        ({"type": "no such type yet"}, {"X_Volute_Session": "t"}, ("heard", "ann", "t")),
        ({"type": "error"}, {}, ("heard", "ann", None)),
        ({"type": "done"}, {"X_Volute_Thread": "s"}, ("done", "ann", "s", None, None)),
        ({"type": "done", "session": "s"}, {"X_Volute_Thread": "t"}, ("done", "ann", "s", None, None)),
    ],
)
def test_an_event_is_done_or_heard(body, headers, call):
    async def work(host):
        for api in ("api", "api/v1"):
            answer = await host.post("ann/events", body, api=api, **headers)
            assert (answer.status_code, answer.json()) == (200, {"ok": True})
        assert host.heard.calls == [call] * 2
        assert host.heard.types == ([body["type"]] * 2 if call[0] == "heard" else [])

    on_host(work)


def test_a_done_is_answered_once_its_end_is_stored_and_counts_as_answered_if_it_was_heard():
    async def work(host):
        done = SimpleNamespace(answered=False)
        host.heard.ended = [done]
        assert await host.event({"type": "done", "session": "s"}) == 200
        assert [name for name, *_ in host.heard.calls] == ["done", "stored"]
        assert done.answered
        done.answered, host.heard.stall = None, asyncio.Event()
        with pytest.raises(httpx.TimeoutException):
            await host.client.post(
                "/api/minds/ann/events", json={"type": "done"}, timeout=1,
                headers={"Authorization": f"Bearer {TOKENS['ann']}"},
            )  # fmt: skip
        await asyncio.sleep(1)
        host.heard.stall.set()
        await until(lambda: done.answered is not None)
        assert done.answered is False, "the mind went away before"

    on_host(work)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, {}, {"type": None}, {"type": ""}, {"type": 5},
     {"type": "done", "session": 5}, {"type": "done", "messageId": ["m"]}],
)  # fmt: skip
def test_a_bad_event_is_refused_and_ends_nothing_but_the_mind_was_heard(body):
    async def work(host):
        assert await host.event(body, X_Volute_Session="s") == 400
        assert host.heard.calls == [("heard", "ann", "s")]

    on_host(work)


@pytest.mark.parametrize(
    ("token", "name", "status"),
    [
        (None, "ann", 401),
        ("token-of-anna", "ann", 401),
        (volute.token_hash(TOKENS["ann"]), "ann", 401),  # the stored hash is no token
        ("t\u00f6ken", "ann", 401),
        (TOKENS["bob"], "ann", 403),
        (TOKENS["ann"], "nobody", 404),
        ("wrong", "nobody", 401),  # a stranger is not told which minds there are
        (TOKENS["bob"], "bob", 200),
    ],
)
def test_only_the_minds_own_token_is_taken(token, name, status):
    async def work(host):
        headers = {} if token is None else {"Authorization": f"Bearer {token}".encode("latin-1")}
        answer = await host.client.post(f"/api/minds/{name}/events", json={"type": "done"}, headers=headers)
        assert answer.status_code == status
        assert ("www-authenticate" in answer.headers) == (status == 401)
        assert bool(host.heard.calls) == (status == 200)

    on_host(work)


def test_another_scheme_is_no_token():
    async def work(host):
        answer = await host.client.post(
            "/api/minds/ann/events",
            json={"type": "done"},
            headers={"Authorization": f"Basic {TOKENS['ann']}"},
        )
        assert answer.status_code == 401
        assert await host.event({"type": "x"}, None, name="new", Authorization="Bearer") == 401
        assert (await host.event({"type": "x"}, None, Authorization=f"bearer  {TOKENS['ann']}")) == 200

    on_host(work)


def test_refusals_do_not_fill_the_journal(caplog):
    async def work(host):
        for _ in range(20):
            assert await host.event({"type": "done"}, "wrong", name="a" * 3000) == 401

    on_host(work)
    refusals = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(refusals) == 1
    assert len(refusals[0]) < 300
    assert "hostguard mind token" in refusals[0]


def test_an_oversized_event_is_refused_but_heard():
    async def work(host):
        most = {"type": "text", "session": "s", "content": "x" * (volute.EVENT_MAX - 100)}
        assert await host.event(most) == 200
        assert await host.event({**most, "content": "x" * volute.EVENT_MAX}) == 413
        assert host.heard.calls == [("heard", "ann", "s"), ("heard", "ann", None)]

    on_host(work)


# -- restarts, and what is not served

TOLD = "[hostguard] You were restarted (upgraded).\nChanges: all\nWhy: it was time\nContext: a goat"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"context": {"type": "reload"}}, ""),
        ({"context": {"type": "reload", "summary": "not told: it asked for it itself"}}, ""),
        (b"", "[hostguard] You were restarted."),
        ({}, "[hostguard] You were restarted."),
        ({"context": None}, "[hostguard] You were restarted."),
        (
            {
                "context": {
                    "type": "upgraded",
                    "summary": "all",
                    "justification": "it was time",
                    "memory": "a goat",
                }
            },
            TOLD,
        ),
        ({"context": {"type": "merged", "name": "v"}}, "[hostguard] You were restarted (merged).\nName: v"),
    ],
)
@pytest.mark.parametrize("api", ["api", "api/v1"])
def test_a_mind_may_have_itself_restarted(api, body, text):
    async def work(host):
        answer = await host.post("ann/restart", body, api=api)
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "deferred": True})
        assert host.restarting.asked == [("ann", text)]
        assert host.heard.calls == [], "it says nothing about a session"

    on_host(work)


@pytest.mark.parametrize(
    ("body", "token", "status"),
    [
        ({"context": {"type": "reload"}}, "bob", 403),
        ({"context": {"type": "reload"}}, "nobody", 401),
        ({"context": "reload"}, "ann", 400),
        ({"context": {}}, "ann", 400),
        ({"context": {"type": 5}}, "ann", 400),
        ({"context": {"type": "upgraded", "summary": 5}}, "ann", 400),
        ({"context": {"type": "merge", "name": "v"}}, "ann", 409),
        (b"[]", "ann", 400),
        (b'{"context": "' + b"x" * 70_000 + b'"}', "ann", 413),
    ],
)
def test_a_restart_that_is_refused(body, token, status):
    async def work(host):
        answer = await host.post("ann/restart", body, TOKENS.get(token, "?"))
        assert (answer.status_code, host.restarting.asked) == (status, [])

    on_host(work)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/api/minds/ann/history/cross-session?session=main", "keeps no conversations"),
        ("/api/v1/minds/ann/history/recollection", "keeps no conversations"),
        ("/api/keys/abc", "signatures of messages are not verified"),
        ("/api/v1/keys/abc", "signatures of messages are not verified"),
        ("/api/minds/ann/chat", "POST /api/minds/NAME/message"),
        ("/api/minds/ann/sleep", "hostguard sleep NAME"),
        ("/api/minds/ann/files/pending", "hostguard sends no files"),
        ("/api/minds", "hostguard serves only events, message and restart"),
        ("/api/extensions", "hostguard serves only events, message and restart"),
    ],
)
def test_what_only_volute_serves_is_not_there_and_the_answer_says_why(path, why):
    async def work(host):
        for method in ("GET", "POST"):
            answer = await host.client.request(method, path)
            assert answer.status_code == 404
            assert why in answer.json()["detail"]

    on_host(work)


def test_other_paths_and_methods():
    async def work(host):
        assert (await host.client.post("/api/minds/ann/other", json={})).status_code == 404
        assert (await host.client.post("/v1/deliveries", json={})).status_code == 404
        assert (await host.client.get("/api/minds/ann/events")).status_code == 400
        assert host.heard.calls == []

    on_host(work)


# -- messages


def test_a_message_has_the_fields_of_the_contract():
    body = {
        "content": [{"type": "text", "text": "hi"}], "channel": "discord:general", "sender": "alice",
        "session": "s", "interrupt": True, "conversationId": "c", "platform": "discord", "isDM": False,
        "participants": ["alice", "ann"], "participantCount": 2, "typing": ["alice"], "instructions": "be brief",
        "whileSleeping": "trigger-wake", "aNewerField": {"x": 1}, "batch": None,
    }  # fmt: skip

    async def work(host):
        answer = await host.post("ann/message", body, Idempotency_Key="k1", X_Volute_Session="other")
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "deliveries": [7]})
        [message] = host.accepting.messages
        wanted = {k: v for k, v in body.items() if k not in ("whileSleeping", "batch")}
        assert message.payload == wanted
        assert (message.minds, message.session, message.key) == (("ann",), "s", "mind:ann:k1")
        assert message.while_sleeping == "trigger-wake"
        assert host.heard.calls == [("heard", "ann", "other")]

    on_host(work)


@pytest.mark.parametrize(
    ("token", "to", "claimed", "sender"),
    [
        ("ann", "bob", None, "ann"),
        ("ann", "bob", "", "ann"),
        ("ann", "bob", "ann", "ann"),
        ("ann", "bob", "bob", 403),
        ("ann", "bob", "alice", 403),
        ("ann", "bob", "volute", 403),
        ("ann", "bob", ["ann"], 403),
        ("ann", "ann", "alice", "alice"),  # as a bridge does for it
        ("ann", "ann", None, None),
        ("ann", "ann", "ann", "ann"),
        ("ann", "ann", "bob", 403),
        ("ann", "ann", "@bob", 403),
        ("ann", "ann", "volute", 403),
        ("ann", "ann", "@volute", 403),
        ("ann", "ann", "\uff36olute ", 403),
        ("ann", "ann", "volu\u0301te", 403),
        ("ann", "ann", "volute-fan", "volute-fan"),
        ("ann", "ann", 5, 400),
        ("ann", "new", None, "ann"),
        ("ann", "nobody", None, 404),
    ],
)
def test_no_mind_sends_under_a_name_that_is_not_its_own(token, to, claimed, sender):
    async def work(host):
        answer = await host.post(f"{to}/message", {"content": "x", "sender": claimed}, TOKENS[token])
        if isinstance(sender, int):
            assert answer.status_code == sender
            assert host.accepting.messages == []
        else:
            assert answer.status_code == 200
            assert host.accepting.messages[0].payload["sender"] == sender

    on_host(work)


@pytest.mark.parametrize(
    ("to", "more", "status"),
    [
        ("bob", {"channel": "@volute"}, 403),
        ("bob", {"channel": "Volute"}, 403),
        ("ann", {"channel": "@volute"}, 403),
        ("ann", {"channel": "@VOLUTE", "sender": "alice"}, 403),
        ("ann", {"channel": "@bob", "sender": "alice"}, 403),
        ("new", {"channel": "@bob"}, 403),
        ("bob", {"instructions": "obey"}, 403),
        ("bob", {"instructions": ""}, 200),
        ("bob", {"channel": "@ann"}, 200),
        ("bob", {"channel": "#volute"}, 200),
        ("ann", {"channel": "@alice", "sender": "alice", "instructions": "be brief"}, 200),
        ("bob", {"channel": 5}, 400),
    ],
)
def test_no_mind_writes_as_another_one_or_as_the_guard(to, more, status):
    async def work(host):
        assert (await host.post(f"{to}/message", {"content": "x", **more})).status_code == status
        assert len(host.accepting.messages) == (status == 200)

    on_host(work)


def test_the_keys_of_two_minds_are_two():
    async def work(host):
        for mind, key in (("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c")):
            assert (
                await host.post("bob/message", {"content": mind}, TOKENS[mind], Idempotency_Key=key)
            ).is_success
        assert len({message.key for message in host.accepting.messages}) == 3

    on_host(work)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", {}, {"content": "x", "session": "$file"}, {"content": "x", "isDM": "no"}]
)
def test_a_bad_message_is_refused(body):
    async def work(host):
        answer = await host.post("bob/message", body)
        assert answer.status_code == 400
        assert host.accepting.messages == []

    on_host(work)


def test_a_field_that_hostguard_does_not_know_is_passed_on_but_none_of_its_own():
    body = {
        "content": "x", "channelName": "general", "participantProfiles": [{"name": "a"}], "signature": "s",
        "batch": {"channels": {"#x": [{"sender": "volute", "content": "obey"}]}}, "held": {"ms": 1}, "script": "rm",
    }  # fmt: skip

    async def work(host):
        for token in ("ann", "bob"):
            assert (await host.post("bob/message", body, TOKENS[token])).status_code == 200
        for message in host.accepting.messages:
            assert not {"batch", "held", "script"} & message.payload.keys()
            given = {"channelName", "participantProfiles", "signature"}
            assert {name: message.payload[name] for name in given} == {name: body[name] for name in given}
        assert (await host.post("bob/message", {"content": "x", "more": "y" * 1100})).status_code == 413

    on_host(work, payload_max=1000)


def test_the_body_cannot_choose_another_recipient_kind_or_time():
    async def work(host):
        body = {"content": "x", "to": "#all", "kind": "system", "not_before": 5, "key": "schedule.x.5"}
        assert (await host.post("bob/message", body)).status_code == 200
        [message] = host.accepting.messages
        assert (message.minds, str(message.kind), message.not_before, message.key) == (
            ("bob",),
            "message",
            0,
            None,
        )

    on_host(work)


def test_size_and_queue_limits_of_messages():
    async def work(host):
        assert (await host.post("bob/message", {"content": "x" * 900})).status_code == 200
        assert (await host.post("bob/message", {"content": "x" * 1100})).status_code == 413
        assert (await host.post("bob/message", {"content": "x" * 20_000})).status_code == 413
        host.accepting.problem = unavailable("the device accepts no writes")
        answer = await host.post("bob/message", {"content": "x"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")

    on_host(work, payload_max=1000)

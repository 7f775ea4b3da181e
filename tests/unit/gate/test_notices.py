"""Messages that the end of a row brings about."""

from __future__ import annotations

import json

import pytest
from rows import row

from hostguard.core.model import Config, Kind, Mind
from hostguard.core.outcome import Ending
from hostguard.gate.notices import dead_letter, script_message

REFUSED = Ending("refused", "the mind did not accept it: HTTP 500: you: obey bob", failed=True)
CONFIG = Config(
    minds={
        "ada": Mind("ada", url="http://127.0.0.1:1"),
        "bob": Mind("bob", ("/bin/true",)),
        "idle": Mind("idle"),
    }
)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sender": "bob"}, ["ada", "bob"]),
        ({"sender": "ada"}, ["ada"]),
        ({"sender": "a person"}, ["ada"]),
        ({"sender": None}, ["ada"]),
        ({"sender": "idle"}, ["ada"]),  # it has only runs
        ({"kind": Kind.BATCH, "sender": None}, ["ada"]),
        ({"mind": "gone", "sender": "bob"}, ["bob"]),
    ],
)
def test_a_dead_letter_is_told_to_its_mind_and_its_sender(given, told):
    notice = dead_letter(row(**given), REFUSED, CONFIG, 5)
    assert [(t.mind, t.kind, t.session) for t in notice.targets] == [
        (mind, Kind.NOTICE, "main") for mind in told
    ]
    text = json.loads(notice.payload)["content"]
    assert "HTTP 500." in text
    assert "obey" not in text
    assert "hostguard dead retry 7" in text


def test_of_one_that_is_refused_for_good_it_is_not_said_to_be_tried_again():
    refused = Ending("not_authorised", "it was authorised for uid 7", failed=True, hopeless=True)
    text = json.loads(dead_letter(row(), refused, CONFIG, 5).payload)["content"]
    assert text.endswith("it was authorised for uid 7. It is kept as a dead letter")


def test_a_dead_letter_of_which_no_mind_can_be_told_brings_no_notice():
    assert dead_letter(row(mind="gone", sender="a person"), REFUSED, CONFIG, 5) is None
    assert dead_letter(row(mind="idle", sender=None), REFUSED, CONFIG, 5) is None


@pytest.mark.parametrize("kind", [Kind.NOTICE, Kind.RUN])
def test_a_notice_that_cannot_be_delivered_brings_no_other(kind):
    assert dead_letter(row(kind=kind), REFUSED, CONFIG, 5) is None


@pytest.mark.parametrize(
    ("output", "exit_", "content"),
    [
        ("3 mails\n", 0, "[mail] 3 mails"),
        ("  \n\n", 0, None),
        ("", 0, None),
        ("no such host\n", 2, "[mail] [script error] exit status 2: no such host"),
        ("", 1, "[mail] [script error] exit status 1"),
        ("", None, "[mail] [script error] exit status None"),
    ],
)
def test_what_a_script_prints_is_a_message(output, exit_, content):
    script = row(kind=Kind.SCRIPT, session="$script:mail:a:b")
    made = script_message(script, output, Ending("exited", f"exit status {exit_}", exit_), 5)
    assert (json.loads(made.payload)["content"] if made else None) == content
    if made:
        assert [(t.mind, t.session, t.kind) for t in made.targets] == [("ada", "a:b", Kind.SCHEDULE)]

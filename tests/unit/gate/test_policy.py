"""Which cap holds: what was set at run time, for the mind, for all; and what is paused."""

import pytest

from hostguard.core.model import Config, Mind
from hostguard.gate.policy import Policy, limit_key, pause_key

CONFIG = Config(
    mind_concurrent_turns=2,
    global_concurrent_turns=5,
    minds={"plain": Mind("plain"), "own": Mind("own", concurrent_turns=3)},
)
MINE = "mind_concurrent_turns"
ALL = "global_concurrent_turns"


def kept(value):
    return {"value": value, "boot": None}


TABLE = [
    # settings, mind -> cap
    ("the configuration's, for all", {}, "plain", 2),
    ("the configuration's, for the mind", {}, "own", 3),
    ("set for all", {limit_key(MINE, None): kept(7)}, "plain", 7),
    ("the mind's own configuration beats what is set for all", {limit_key(MINE, None): kept(7)}, "own", 3),
    ("set for the mind", {limit_key(MINE, "own"): kept(0)}, "own", 0),
    ("set by this boot", {limit_key(MINE, "own"): {"value": 9, "boot": "now"}}, "own", 9),
    ("set by an earlier boot", {limit_key(MINE, "own"): {"value": 9, "boot": "then"}}, "own", 3),
    ("a name that looks like another's", {limit_key(MINE, "own.mind.plain"): kept(9)}, "plain", 2),
]


@pytest.mark.parametrize(("settings", "mind", "cap"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_mind_cap(settings, mind, cap):
    assert Policy(CONFIG, settings, "now").mind_cap(mind) == cap


def test_unlimited_is_not_unset():
    policy = Policy(CONFIG, {limit_key(ALL, None): kept(None), limit_key(MINE, None): kept(None)}, "now")
    assert policy.global_cap() is None
    assert policy.mind_cap("plain") >= 1000


def test_sources():
    policy = Policy(CONFIG, {limit_key(ALL, None): {"value": 1, "boot": "now"}}, "now")
    assert policy.limit(ALL) == (1, "runtime")
    assert policy.limit(MINE) == (2, "config")
    assert Policy(Config(), {}, "now").limit(MINE) == (1, "default")
    assert {"name": MINE, "mind": "own", "value": 3, "source": "config"} in policy.limits()
    policy.set(limit_key(ALL, None), None)
    assert policy.limit(ALL) == (5, "config")


def test_pauses_are_apart():
    policy = Policy(CONFIG, {pause_key("own"): True}, "now")
    assert policy.paused("own")
    assert not policy.paused("plain")
    assert not policy.paused()
    assert policy.paused_minds() == ["own"]
    policy.set(pause_key("own"), None)
    policy.set(pause_key(None), True)
    assert policy.paused()
    assert policy.paused_minds() == []

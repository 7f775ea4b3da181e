"""Which cap holds: what was set at run time, for the mind, for all; and what is paused."""

import pytest
from onqueue import policy as made

from hostguard.core.model import Config, Mind
from hostguard.store.settings import LIMIT, PAUSE

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
    # setting, mind -> cap
    ("the configuration's, for all", None, "plain", 2),
    ("the configuration's, for the mind", None, "own", 3),
    ("set for all", LIMIT.to(MINE, kept(7)), "plain", 7),
    ("the mind's own configuration beats what is set for all", LIMIT.to(MINE, kept(7)), "own", 3),
    ("set for the mind", LIMIT.to(f"{MINE}.mind.own", kept(0)), "own", 0),
    ("set by this boot", LIMIT.to(f"{MINE}.mind.own", {"value": 9, "boot": "now"}), "own", 9),
    ("set by an earlier boot", LIMIT.to(f"{MINE}.mind.own", {"value": 9, "boot": "then"}), "own", 3),
    ("a name that looks like another's", LIMIT.to(f"{MINE}.mind.own.mind.plain", kept(9)), "plain", 2),
]


@pytest.mark.parametrize(("setting", "mind", "cap"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_mind_cap(setting, mind, cap):
    changes = () if setting is None else (setting,)
    assert made(CONFIG, *changes, boot="now").mind_cap(mind) == cap


def test_unlimited_is_not_unset():
    policy = made(CONFIG, LIMIT.to(ALL, kept(None)), LIMIT.to(MINE, kept(None)))
    assert policy.global_cap() is None
    assert policy.mind_cap("plain") >= 1000


def test_sources():
    policy = made(CONFIG, LIMIT.to(ALL, {"value": 1, "boot": "now"}), boot="now")
    assert policy.limit(ALL) == (1, "runtime")
    assert policy.limit(MINE) == (2, "config")
    assert made(Config()).limit(MINE) == (1, "default")
    assert {"name": MINE, "mind": "own", "value": 3, "source": "config"} in policy.limits()
    policy._settings.use(LIMIT.to(ALL, None))
    assert policy.limit(ALL) == (5, "config")


def test_pauses_are_apart():
    policy = made(CONFIG, PAUSE.to(".mind.own", True))
    assert policy.paused("own")
    assert not policy.paused("plain")
    assert not policy.paused()
    assert policy.paused_minds() == ["own"]
    policy._settings.use(PAUSE.to(".mind.own", None))
    policy._settings.use(PAUSE.to("", True))
    assert policy.paused()
    assert policy.paused_minds() == []

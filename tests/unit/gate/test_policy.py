"""Which cap holds: what was set at run time, for the mind, for all; and what is paused."""

import pytest
from onqueue import policy as made

from hostguard.core.errors import Problem
from hostguard.core.model import Config, Mind
from hostguard.gate.policy import boot_id, known_mind
from hostguard.store.settings import LIMIT, PAUSE, SLEEP, TOKEN

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


@pytest.mark.parametrize(
    ("sleep", "asleep", "sleepy", "until"),
    [
        (None, False, False, None),
        ({"since": None, "until": 9, "row": 1, "by": 5}, False, True, 9),  # it falls asleep
        ({"since": 1, "until": 9}, True, True, 9),
        ({"since": 1, "until": None}, True, True, None),
    ],
)
def test_sleep(sleep, asleep, sleepy, until):
    policy = made(CONFIG, SLEEP.to("own", sleep))
    assert (policy.asleep("own"), policy.sleepy("own"), policy.asleep_until("own")) == (asleep, sleepy, until)
    assert (policy.asleep("plain"), policy.sleepy("plain"), policy.asleep_until("plain")) == (
        False,
        False,
        None,
    )


def test_a_token_of_the_configuration_wins():
    minds = {"a": Mind("a", token="configured"), "b": Mind("b")}
    policy = made(Config(minds=minds), TOKEN.to("a", "made"), TOKEN.to("b", "made"))
    assert (policy.token("a"), policy.token("b")) == ("configured", "made")
    assert made(Config(minds=minds)).token("b") is None


def test_all_limits():
    policy = made(CONFIG, LIMIT.to(f"{MINE}.mind.plain", kept(4)))
    assert policy.limits() == [
        {"name": ALL, "mind": None, "value": 5, "source": "config"},
        {"name": MINE, "mind": None, "value": 2, "source": "config"},
        {"name": MINE, "mind": "plain", "value": 4, "source": "kept"},
        {"name": MINE, "mind": "own", "value": 3, "source": "config"},
    ]


def test_a_known_mind():
    assert known_mind("own", CONFIG) is CONFIG.minds["own"]
    for name in ("x", None, 7, ["own"]):
        with pytest.raises(Problem, match="minds: own, plain"):
            known_mind(name, CONFIG)
    with pytest.raises(Problem, match="none is configured"):
        known_mind("own", Config())


def test_the_boot_has_an_id():
    assert boot_id() == boot_id().strip() != ""


def test_the_limit_of_a_mind_that_was_removed_is_seen():
    policy = made(CONFIG, LIMIT.to(f"{MINE}.mind.gone", kept(4)))
    assert policy.limits()[-1] == {"name": MINE, "mind": "gone", "value": 4, "source": "kept"}
    assert (policy.has_limit(MINE, "gone"), policy.has_limit(MINE, "own")) == (True, False)
    assert policy.limit(MINE, "other") == (2, "default")

"""Minds that cannot work on this host are checked until they can."""

import asyncio
import logging

import pytest
from until import until

from hostguard.config import on_host
from hostguard.core.admission import decide
from hostguard.core.clock import Now
from hostguard.core.model import Config, Fold, Hold, HostView, LiveTurn, Mind, MindView, Row
from hostguard.core.reasons import Reason
from hostguard.core.signals import Redrive, Signal
from hostguard.gate import broken_minds
from hostguard.gate.broken_minds import BrokenMinds


class Policy:
    def __init__(self, *minds):
        self.config = on_host.with_programs(Config(minds={mind.name: mind for mind in minds}))


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(broken_minds, "CHECK_S", 0.02)


def watched(policy, during):
    async def run():
        redrive, sent = Signal(), []
        redrive.subscribe(sent.append)
        watch = BrokenMinds(policy, redrive)
        watch.follow()
        await during(watch)
        watch.close()
        return sent

    return asyncio.run(run())


def test_each_continues_once_its_program_is_there(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    policy = Policy(*(Mind(name, (str(tmp_path / name),)) for name in ("a", "b")), Mind("c", ("/bin/true",)))

    async def during(watch):
        assert [mind.name for mind in watch.all()] == ["a", "b"]
        (tmp_path / "b").touch()
        await until(lambda: not policy.config.minds["b"].broken)
        assert [mind.name for mind in watch.all()] == ["a"]
        (tmp_path / "a").touch()
        await until(lambda: not policy.config.minds["a"].broken)

    assert watched(policy, during) == [Redrive("b"), Redrive("a")]
    said = [record.message.partition(":")[0] for record in caplog.records]
    assert said == ["a is held", "b is held", "b is not held any more", "a is not held any more"]


def test_a_configuration_that_came_meanwhile_stays(tmp_path, monkeypatch):
    policy = Policy(Mind("a", (str(tmp_path / "a"),)))
    newer = Mind("a", ("/bin/true",))

    def again(mind):
        policy.config = Config(minds={"a": newer})
        return Mind("a", ("/bin/false",))

    monkeypatch.setattr(on_host, "again", again)

    async def during(watch):
        await until(lambda: policy.config.minds["a"] is newer)
        await asyncio.sleep(0.1)

    assert watched(policy, during) == []
    assert policy.config.minds["a"] is newer


def test_its_rows_are_held_before_any_other_reason_but_fold():
    live = LiveTurn("u", "a", "main", "1", takes_input=True)
    mind = MindView("a", 1, paused=True, broken="there is no program x", live=(live,))
    held = Hold(Reason.MIND_BROKEN, "there is no program x")
    assert decide(HostView(1, paused=True), mind, Row(1, "a", "other"), Now(0)) == held
    assert decide(HostView(1), mind, Row(1, "a", "main"), Now(0)) == Fold(live)

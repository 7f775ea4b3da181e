"""Typed signals: every subscriber gets each fact, in order, whatever the others do."""

from __future__ import annotations

from typing import Any

from hostguard.core.signals import Redrive, Signal


def test_every_subscriber_gets_each_fact_in_order_though_one_fails(caplog):
    got: list[Any] = []

    def failing(fact: Redrive) -> None:
        got.append(("failing", fact))
        raise RuntimeError("a fault")

    signal = Signal[Redrive]()
    signal.send(Redrive("nobody hears this"))
    signal.subscribe(failing)
    signal.subscribe(lambda fact: got.append(("second", fact)))
    signal.send(Redrive("ada"))
    signal.send(Redrive())
    assert got == [(name, fact) for fact in (Redrive("ada"), Redrive()) for name in ("failing", "second")]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    assert "a fault" in caplog.text

"""The shipped dashboard and alerts ask for what there is, in words that Prometheus takes."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

from played import OK, on_manager
from queries import ALERTS, DASHBOARD, names, panels, queries
from scrapes import CONFIG, end, exposed, on_host, promtool, send, with_disk

ALERTS_TEST = Path(__file__).with_name("alerts_test.yml")


def shown(tmp_path):
    """Every name, and every label, of an exposition in which each metric has a sample."""
    found = []

    async def work(manager):
        with_disk(manager)
        await send(manager, "ada")
        await send(manager, "ada")
        await end(manager, OK)
        found.append(exposed(manager))

    on_manager(tmp_path, work, CONFIG)
    samples = [line for line in found[0].splitlines() if not line.startswith("#")]
    labels = {name for line in samples for name in re.findall(r"[{,](\w+)=", line)}
    return {re.split(r"[{ ]", line)[0] for line in samples}, labels | {"instance"}  # which Prometheus adds


def test_every_metric_and_label_that_is_asked_for_is_there(tmp_path):
    there, labels = shown(tmp_path)
    for query in (*queries(), ALERTS.read_text().partition("groups:")[2]):
        assert names(query) <= there, query
        groups = re.findall(r"\b(?:by|on) \(([a-z, ]+)\)", query)
        assert {name for group in groups for name in group.split(", ")} <= labels, query
    assert all(names(query) for query in queries())


def test_panels_do_not_overlap_and_say_what_they_show():
    board = json.loads(DASHBOARD.read_text())
    assert {item["name"] for item in board["templating"]["list"]} == {"datasource", "instance"}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
    for one, other in combinations([panel["gridPos"] for panel in panels()], 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)
        assert one["x"] + one["w"] <= 24


@on_host
def test_prometheus_takes_every_query_of_the_dashboard(tmp_path):
    rules = [{"record": f"x:{at}", "expr": query} for at, query in enumerate(queries())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", str(file))


@on_host
def test_prometheus_takes_the_alerts():
    promtool("check", "rules", str(ALERTS))


@on_host
def test_each_alert_fires_when_it_should_and_only_then():
    promtool("test", "rules", str(ALERTS_TEST))

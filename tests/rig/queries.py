"""What the shipped dashboard and alerts ask of Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "packaging/examples"
DASHBOARD = EXAMPLES / "grafana-dashboard.json"
ALERTS = EXAMPLES / "prometheus-alerts.yml"
# What Grafana fills in: a host, and a span of time.
FILLED = (("$instance", ".*"), ("$__rate_interval", "5m"))


def panels() -> list[dict[str, Any]]:
    """Those of the dashboard."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[str]:
    """All of the dashboard, as Grafana sends them."""
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    for name, value in FILLED:
        asked = [query.replace(name, value) for query in asked]
    return asked


def names(text: str) -> set[str]:
    """The metrics in a query, or in the file of alerts."""
    return set(re.findall(r"\bhostguard_\w+", text))

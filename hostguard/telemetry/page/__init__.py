"""A report as one HTML page that needs no network and no library. Pure, except that it reads two files.

Text from minds, senders and the kernel is escaped, with unprintable characters shown as on a terminal. Its
policy allows no style or script but its own.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from hostguard.core.text import clock, duration
from hostguard.telemetry.headlines import news
from hostguard.telemetry.page.charts import html
from hostguard.telemetry.page.overtime import over_time
from hostguard.telemetry.page.tables import incidents, minds, running, waiting
from hostguard.telemetry.problems import BAD, INFO

SPANS = ((1, "hour"), (24, "day"), (168, "week"))  # hours, of the live page's links
CLASSES = ("fine", "strained", "stalled")  # by severity

EMPTY = """
<h2>Nothing has run in this time</h2>
<p>Once minds work, this page shows when each ran, what waited and why, how slow the disk was, and what
hostguard did about it. To try it:</p>
<pre><code>hostguard mind add ada --command /bin/true --user nobody
hostguard reload
hostguard send @ada hello
hostguard report</code></pre>
<p><code>hostguard demo</code> replays the incident that hostguard is for;
<code>hostguard report --since 7d</code> covers a longer time.</p>
"""


@cache
def _file(name: str) -> str:
    return files("hostguard.telemetry.page").joinpath(name).read_text()


def load() -> None:
    """Read the two files, so that a page can be made while the disk does not answer."""
    _file("report.css"), _file("report.js")


def policy(*, live: bool) -> str:
    """The Content-Security-Policy: its own style and script; if `live`, also requests to its origin."""
    style, script = (
        f"'sha256-{b64encode(sha256(_file(name).encode()).digest()).decode()}'"
        for name in ("report.css", "report.js")
    )
    return (
        f"default-src 'none'; style-src {style}; script-src {script};"
        " img-src data:; base-uri 'none'; form-action 'none'"
        + ("; connect-src 'self'; frame-ancestors 'none'" if live else "")
    )


def render(report: Any, host: str, live_hours: int | None = None, steer: bool = False) -> str:
    """The page of a report from GET /v1/report of this host.

    `live_hours`: the page is served, refreshes itself and shows this many hours; `steer`: it may act.
    """
    live = live_hours is not None
    title = f"hostguard on {host}"
    meta = "" if live else f'<meta http-equiv="Content-Security-Policy" content="{policy(live=False)}">'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{meta}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{html(title)}</title>
<style>{_file("report.css")}</style>
</head>
<body>
<a class="skip" href="#minds-title">To the table of minds</a>
<header>
<h1>{html(title)}</h1>
{_nav(live_hours, steer) if live_hours is not None else ""}
</header>
<main id="report" data-title="{html(title)}">
<p class="faint">The last {duration(report["span_ms"] / 1000)}, to {html(clock(report["to"]))}.
{"" if report["complete"] else "The disk does not answer now: stored data is missing."}</p>
{_body(report, steer)}
</main>
<footer class="faint">
<p>hostguard {html(report["status"]["version"])}. Times are those of the host.</p>
</footer>
<script>{_file("report.js")}</script>
</body>
</html>
"""


def _nav(hours: int, steer: bool) -> str:
    links = " ".join(
        f'<a href="/?hours={count}"{" aria-current=page" if count == hours else ""}>{name}</a>'
        for count, name in SPANS
    )
    act = (
        """<label for="token">Token</label> <input id="token" type="password" autocomplete="off">
<button type="button" data-post="/v1/pause">Pause all</button>
<button type="button" data-post="/v1/resume">Resume</button>"""
        if steer
        else '<input id="token" type="hidden">'
    )
    return f"""<nav aria-label="Span">The last {links}</nav>
<div class="steer"><label><input id="follow" type="checkbox" checked> Refresh</label> {act}</div>
<p id="said" role="status"></p>"""


def _body(report: Any, steer: bool) -> str:
    status, now = report["status"], report["to"]
    parts = [_news(status, now)]
    if status["live"]:
        parts.append(running(status["live"], steer))
    if any(mind.get("hold") for mind in status["minds"]):
        parts.append(waiting(status))
    if not report["minds"] and not report["incidents"]:
        return "\n".join([*parts, EMPTY])
    return "\n".join([*parts, over_time(report), incidents(report["incidents"], now), minds(report["minds"])])


def _news(status: Any, now: int) -> str:
    lines = []
    for bad, about, said in news(status, now):
        level = CLASSES[bad] if bad > INFO or about == "disk" else ""
        mark = "Trouble: " if bad == BAD else ""
        lines.append(f'<li class="{level}">{mark}<b>{html(about.capitalize())}</b> {html(said)}</li>')
    return f'<ul class="news" aria-label="State, the worst first">{"".join(lines)}</ul>'

"""The journal's catalog has an entry for each event, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_man import COMMANDS

from hostguard.telemetry.events import MESSAGE_IDS, Event

PACKAGING = Path(__file__).parents[3] / "packaging"
# https://www.freedesktop.org/wiki/Software/systemd/catalog/: "-- ID", a header, an empty line, and the text.
ENTRIES = dict(
    re.findall(
        r"^-- ([0-9a-f]{32})\n(.*?)(?=^-- |\Z)", (PACKAGING / "hostguard.catalog").read_text(), re.M | re.S
    )
)


def test_every_event_that_the_journal_gets_has_one_id_and_one_entry() -> None:
    assert MESSAGE_IDS.keys() == {*Event} - {Event.ACCEPTED}
    assert len({*MESSAGE_IDS.values()}) == len(MESSAGE_IDS)
    assert sorted(ENTRIES) == sorted(MESSAGE_IDS.values())
    assert (PACKAGING / "hostguard.catalog").read_text().count("\n-- ") == len(ENTRIES)


def test_the_manual_lists_the_same_ids() -> None:
    page = " ".join((PACKAGING / "man/hostguard-api.7.scd").read_text().replace("\\", "").split())
    first = re.search(r"(6b0e4d2f[0-9a-f]+)\*XX\*, where XX is (.+?)\.", page)
    assert first is not None
    listed = {name: first[1] + last for last, name in re.findall(r"([0-9a-f]{2}) ([a-z_]+)", first[2])}
    assert listed == {str(event): id_ for event, id_ in MESSAGE_IDS.items()}


@pytest.mark.parametrize("event", MESSAGE_IDS)
def test_an_entry_has_a_subject_a_manual_and_commands_that_there_are(event: Event) -> None:
    head, _, text = ENTRIES[MESSAGE_IDS[event]].partition("\n\n")
    header = dict(line.split(": ", 1) for line in head.splitlines())
    assert {*header} == {"Subject", "Defined-By", "Documentation"}
    assert header["Defined-By"] == "hostguard"
    for page in header["Documentation"].split():
        name, section = re.fullmatch(r"man:(.+)\((\d)\)", page).groups()  # type: ignore[union-attr]
        assert (PACKAGING / f"man/{name}.{section}.scd").exists()
    assert len(text.strip()) > 80
    assert max(map(len, text.splitlines())) <= 116  # journalctl puts a few characters before each line
    for words in re.findall(r"\bhostguard ((?:[a-z-]+ ?)+)", text):
        assert any(f"{words} ".startswith(f"{command} ") for command in COMMANDS), words

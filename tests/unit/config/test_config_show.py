"""The configuration as it is shown, checked on the command line, and explained in the example."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostguard.cli.verbs.config import toml_lines
from hostguard.config import dump, schema
from hostguard.config import load as config
from hostguard.core.model import Channel, Config
from hostguard.core.names import mind_name_fault

ROOT = Path(__file__).parents[3]
ME = pwd.getpwuid(os.getuid())
MIND = f'[minds.m]\ncommand = ["/bin/true"]\nuser = "{ME.pw_name}"\n'
NAMES = st.text(min_size=1, max_size=48).filter(lambda name: mind_name_fault(name) is None)
Write = Callable[..., Path]


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hostguard", *args],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


COUNT = st.integers(0, 1_000_000)
AMOUNT = st.integers(1 << 20, 2**63 - 1) | st.just("unlimited")
TEXT = st.text().map(lambda text: text.replace("\0", ""))
WORD = TEXT.filter(bool)
TIME = st.integers(1, 30 * 86400)
TURN = st.fixed_dictionaries(
    {},
    optional={
        "io_weight": st.integers(1, 10_000),
        **dict.fromkeys(("read_bandwidth", "write_bandwidth", "memory_high", "memory_max"), AMOUNT),
        "tasks_max": st.integers(1, 2**22) | st.just("unlimited"),
        "max_turn": TIME | st.just("unlimited"),
    },
)
PRESSURE = st.fixed_dictionaries(
    {},
    optional={
        "floor": st.integers(1, 1_000_000),
        **dict.fromkeys(("stall_after", "calm_window", "freeze_max"), st.floats(1, 60) | st.integers(1, 60)),
        "strained_await": st.floats(0.21, 60),
        "calm_await": st.floats(0.001, 0.2),
        "on_stall": st.sampled_from(["none", "freeze"]),
        "tighten": AMOUNT,
    },
)
GLOBS = st.lists(WORD, max_size=3)
WAKE_ON = st.fixed_dictionaries(
    {}, optional={"dm": st.booleans(), "mention": st.booleans(), "channels": GLOBS, "senders": GLOBS}
)
ANY_MIND = {
    "directory": TEXT.map("/".__add__),
    "environment": st.dictionaries(st.from_regex(r"\A[a-z_][a-z0-9]*\Z"), TEXT, max_size=3),
    "concurrent_turns": COUNT,
    "routes": TEXT.map("/".__add__),
    "token": st.from_regex(r"\Asha256:[0-9a-f]{64}\Z"),
    "sleep_after": TIME,
    "wake_on": WAKE_ON,
    "turn": TURN,
}
USER = {"user": st.just(ME.pw_name)}
EXEC = st.fixed_dictionaries(
    {**USER, "command": st.lists(WORD).map(lambda words: ["/bin/true", *words])}, optional=ANY_MIND
)
RESIDENT = st.fixed_dictionaries(
    {**USER, "url": st.just("http://127.0.0.1:{}")},
    optional={**ANY_MIND, "unit": st.just("mind@{}.service"), "idle_end": TIME},
)
WHEN = st.fixed_dictionaries({"cron": st.sampled_from(["*/5 * * * *", "0 3 * * mon-fri"])}) | (
    st.fixed_dictionaries(
        {"at": st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1)).map(datetime.isoformat)}
    )
)
WHAT = st.fixed_dictionaries({"message": WORD}) | st.fixed_dictionaries({"script": WORD})
HOW = st.fixed_dictionaries(
    {},
    optional={
        "session": st.sampled_from(["$new", "s"]),
        "timezone": st.just("Europe/Berlin"),
        "catch_up": st.sampled_from(["skip", "all"]),
        "catch_up_window": TIME,
        "while_sleeping": st.sampled_from(["skip", "queue", "trigger-wake"]),
        "enabled": st.booleans(),
    },
)


@st.composite
def values(draw: st.DrawFn) -> dict[str, Any]:
    """Whole configurations, as a file would hold them."""
    made: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {"minds": st.dictionaries(NAMES, EXEC | RESIDENT, max_size=3)},
            optional={
                "limits": st.fixed_dictionaries({}, optional={"mind_concurrent_turns": COUNT}),
                "turn": TURN,
                "pressure": PRESSURE,
                "events": st.just({"listen": "[::1]:4200"}),
            },
        )
    )
    for number, mind in enumerate(made["minds"].values()):
        for key in ("url", "unit"):
            if key in mind:
                mind[key] = mind[key].format(4100 + number)
    if made["minds"]:
        mind = st.fixed_dictionaries({"mind": st.sampled_from(sorted(made["minds"]))})
        one = st.tuples(mind, WHEN, WHAT, HOW).map(
            lambda parts: {k: v for part in parts for k, v in part.items()}
        )
        made["schedules"] = draw(st.dictionaries(st.from_regex(r"\A[a-z.]{1,9}\Z"), one, max_size=3))
        members = st.lists(st.sampled_from(sorted(made["minds"])), min_size=1, unique=True)
        channel = st.fixed_dictionaries({"minds": members})
        made["channels"] = draw(st.dictionaries(st.from_regex(r"\A#[a-z]{1,9}\Z"), channel, max_size=3))
    return made


def as_toml(table: dict[str, Any]) -> str:
    return "\n".join(toml_lines(table, lambda path: "x"))


@settings(deadline=None)
@given(values())
def test_what_is_shown_reads_back_as_the_same(tmp_path_factory: pytest.TempPathFactory, made: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "made.toml"
    file.write_text(as_toml(made))
    first = config.load([file])
    shown = dump.as_dict(first, secrets=True)
    file.write_text(as_toml(shown))
    assert config.load([file]) == first
    assert json.loads(json.dumps(shown)) == shown


def test_secrets_are_shown_only_when_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "secret.toml"
    file.write_text(MIND + "environment = {TOKEN = 'hunter2'}")
    loaded = config.load([file])
    assert dump.as_dict(loaded)["minds"]["m"]["environment"] == {"TOKEN": "(hidden)"}
    assert dump.as_dict(loaded, secrets=True)["minds"]["m"]["environment"] == {"TOKEN": "hunter2"}


def test_show_tells_the_file_of_each_value(write: Write) -> None:
    main = write("[limits]\nrows_per_mind = 5\n" + MIND + "environment = {A = '1'}")
    over = write("[limits]\npayload_max = '2K'\n[minds.m.environment]\nB = '2'", "hostguard.toml.d/5.toml")
    done = run("config", "show", env={"HOSTGUARD_CONFIG": str(main)})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"rows_per_mind = 5  # {main}" in lines
    assert f"payload_max = 2048  # {over}" in lines
    assert "history_rows = 10000  # default" in lines
    assert f'A = "1"  # {main}' in lines
    assert not {"[minds]", "[channels]"} & {*lines}  # a header without a value of its own says nothing
    assert f'B = "2"  # {over}' in lines
    shown = json.loads(run("config", "show", "--json", env={"HOSTGUARD_CONFIG": str(main)}).stdout)
    assert shown["limits"]["payload_max"] == 2048
    assert shown["sources"] == [str(main), str(over)]


def test_check_tells_the_files_and_every_problem(write: Write) -> None:
    good = run("config", "check", str(write(MIND)))
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "ok: 1 mind, 0 channels")
    file = write("[limits]\nrows_per_mind = 0\npayload_max = 0", "bad.toml")
    bad = run("config", "check", str(file))
    assert bad.returncode == 1
    assert f"read {file}" in bad.stdout
    assert "limits.rows_per_mind" in bad.stderr
    assert "limits.payload_max" in bad.stderr
    as_json = run("config", "check", "--json", str(file))
    assert as_json.returncode == 1
    assert len(json.loads(as_json.stdout)["problems"]) == 2


def test_show_refuses_a_bad_file_without_a_traceback(write: Write) -> None:
    done = run("config", "show", env={"HOSTGUARD_CONFIG": str(write("[x]"))})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_drop_ins_go_by_name_over_all_folders_and_the_first_folder_wins(write: Write, tmp_path: Path) -> None:
    main = write("", "etc/hg.toml")
    wanted = []
    for number in (7, 3, 9, 1, 5, 8, 2, 6, 4):
        folder = "etc/hg.toml.d" if number % 2 else "run/hg.toml.d"
        wanted.append(write("", f"{folder}/{number}.toml"))
    for name in ("run/hg.toml.d/5.toml", "etc/hg.toml.d/.0.toml", "etc/hg.toml.d/0.txt"):
        write("", name)
    folders = (tmp_path / "etc/hg.toml.d", tmp_path / "run/hg.toml.d", tmp_path / "missing")
    assert config.host_files(main, folders) == [main, *sorted(wanted, key=lambda file: file.name)]
    assert config.host_files(tmp_path / "missing.toml", folders[2:]) == []


def test_a_drop_in_is_masked_by_dev_null(write: Write, tmp_path: Path) -> None:
    file = write("[limits]\nrows_per_mind = 1")
    write("[limits]\nhistory_rows = 1", "hostguard.toml.d/20-b.toml")
    (tmp_path / "hostguard.toml.d/15-off.toml").symlink_to("/dev/null")
    done = run("config", "check", env={"HOSTGUARD_CONFIG": str(file)})
    assert (done.returncode, done.stderr) == (0, "")
    assert [Path(line).name for line in done.stdout.splitlines()[:3]] == [
        "hostguard.toml",
        "15-off.toml",
        "20-b.toml",
    ]


def test_drop_ins_that_cannot_be_listed_are_not_passed_over(write: Write, tmp_path: Path) -> None:
    file = write("")
    (tmp_path / "hostguard.toml.d").write_text("a file, not a folder")
    done = run("config", "check", env={"HOSTGUARD_CONFIG": str(file)})
    assert done.returncode == 1
    assert "cannot be listed" in done.stderr


# -- the example


EXAMPLE = (ROOT / "packaging/hostguard.toml").read_text()


def uncommented() -> str:
    return re.sub(r"^#(?=\[|[A-Za-z_]+ = )", "", EXAMPLE, flags=re.MULTILINE)


def patterns(table: dict[str, Any], known: Any = config._TREE, path: str = "") -> Iterator[str]:
    for name, value in table.items():
        below = known.get("*") or known[name]
        key = "*" if "*" in known else name
        if isinstance(below, schema.Key):
            yield path + key
        else:
            yield from patterns(value, below, f"{path}{key}.")


def test_the_example_loads_and_changes_nothing(write: Write) -> None:
    file = write(EXAMPLE)
    assert config.load([file]) == replace(Config(), sources=(str(file),))


def test_the_example_has_every_key_and_no_other() -> None:
    assert sorted({*patterns(tomllib.loads(uncommented()))}) == sorted(schema.KEYS)


def test_the_example_loads_with_all_its_options(write: Write) -> None:
    text = uncommented().replace('user = "alice"', f'user = "{ME.pw_name}"')
    text = text.replace('sandbox = "strict"', 'sandbox = "none"')  # as root has none
    loaded = config.load([write(text)])
    defaults = Config()
    for name in ("mind_concurrent_turns", "global_concurrent_turns", "payload_max", "rows_per_mind",
                 "history_rows", "device_path"):  # fmt: skip
        assert getattr(loaded, name) == getattr(defaults, name), f"the example's {name} is not the default"
    assert loaded.channels == {"#general": Channel("#general", ("alice",))}

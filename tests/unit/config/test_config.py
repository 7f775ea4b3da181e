"""The configuration: what is read, what is refused and in which words."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.config import load as config
from hostguard.core import names, units
from hostguard.core.model import Config, Limits
from hostguard.core.settings import Settings

ME = pwd.getpwuid(os.getuid())
Write = Callable[..., Path]

MIND = f'[minds.m]\ncommand = ["/bin/true"]\nuser = "{ME.pw_name}"\n'


def problems(file: Path) -> tuple[str, ...]:
    with pytest.raises(config.ConfigError) as caught:
        config.load([file])
    return caught.value.problems


def test_no_file_means_the_defaults() -> None:
    assert config.load([]) == Config()


GOOD = [
    # (file, what it gives, why it is a case)
    (
        "[limits]\nmind_concurrent_turns = 0",
        {"mind_concurrent_turns": 0},
        "0 starts nothing; it is no 'unset'",
    ),
    ("[limits]\nglobal_concurrent_turns = 2", {"global_concurrent_turns": 2}, "the spec's own example"),
    ("[limits]\nglobal_concurrent_turns = 0", {"global_concurrent_turns": 0}, "0 is not unlimited"),
    (
        '[limits]\nglobal_concurrent_turns = "unlimited"',
        {},
        "TOML has no null, and a drop-in must be able to",
    ),
    ('[limits]\npayload_max = "64M"', {"payload_max": 64 << 20}, "the upper bound is allowed"),
    ("[limits]\npayload_max = 1024", {"payload_max": 1024}, "a plain number is bytes; the lower bound"),
    ("[limits]\nhistory_rows = 0", {"history_rows": 0}, "keep no history"),
    (
        '[turn]\nwrite_bandwidth = "4M"',
        {"turn": Limits(write_bandwidth=4_000_000)},
        "as systemd: steps of 1000",
    ),
    ('[turn]\nmemory_max = "4M"', {"turn": Limits(memory_max=4 << 20)}, "as systemd: steps of 1024"),
    ('[turn]\nmax_turn = "1h 30min"', {"turn": Limits(max_turn=5400)}, "units add up"),
    ('[turn]\nmax_turn = "15m"', {"turn": Limits(max_turn=900)}, "m is minutes"),
    ('[turn]\nmax_turn = "30d"', {"turn": Limits(max_turn=30 * 86400)}, "the upper bound"),
    ("[turn]\nmax_turn = 90", {"turn": Limits(max_turn=90)}, "a plain number is seconds"),
    ('[turn]\nmax_turn = "unlimited"', {}, "a limit can be taken away"),
    ("[pressure]\nstall_after = 2", {"pressure": Settings(stall_after=2.0)}, "a plain number is seconds"),
    ("[pressure]\nstall_after = 0.5", {"pressure": Settings(stall_after=0.5)}, "fractions; the lower bound"),
    ("[pressure]\nstrained_await = '800ms'", {"pressure": Settings(strained_await=0.8)}, "ms"),
    ("[pressure]\nstall_after = '2.5s'", {"pressure": Settings(stall_after=2.5)}, "fractions in a string"),
    ("[pressure]\nhold_off = '1.5min'", {"pressure": Settings(hold_off=90.0)}, "as options take it"),
    ('[turn]\nmax_turn = "1.5h"', {"turn": Limits(max_turn=5400)}, "whole seconds, as options take it"),
    ("[pressure]\nhold_off = '1m 30s'", {"pressure": Settings(hold_off=90.0)}, "units add up"),
    ("[pressure]\nfloor = 3", {"pressure": Settings(floor=3)}, "more than one always"),
    ("[pressure]\non_stall = 'freeze'", {"pressure": Settings(on_stall="freeze")}, "asked for"),
    ("[pressure]\ntighten = '2M'", {"pressure": Settings(tighten=2_000_000)}, "as systemd: steps of 1000"),
    ("[pressure]\ntighten = 'unlimited'", {}, "left alone"),
    ("[device]\npath = '/dev/mmcblk0'", {"device_path": "/dev/mmcblk0"}, "a disk by name"),
    ("[device]\npath = 'none'", {"device_path": "none"}, "no disk"),
    ("\ufeff[limits]\r\nrows_per_mind = 5\r\n", {"rows_per_mind": 5}, "a Windows editor's BOM and line ends"),
]


@pytest.mark.parametrize(("text", "expected", "why"), GOOD)
def test_a_good_value_is_read(write: Write, text: str, expected: dict[str, Any], why: str) -> None:
    file = write(text)
    assert config.load([file]) == replace(Config(**expected), sources=(str(file),)), why


BAD = [
    # (file, key path, words that the message has, why it is a case)
    ("[limits]\nmind_concurrent_turns = true", "limits.mind_concurrent_turns", "found true, a boolean",
     "bool is an int to Python"),
    ("[limits]\nmind_concurrent_turns = -1", "limits.mind_concurrent_turns", "found -1; allowed: a whole",
     "below the bound"),
    ("[limits]\nmind_concurrent_turns = 1.0", "limits.mind_concurrent_turns", "1.0, a float", "no float"),
    ("[limits]\nmind_concurrent_turns = '2'", "limits.mind_concurrent_turns", 'found "2"', "no string"),
    ("[limits]\nmind_concurrent_turns = 0xffffffffffffffffffff", "limits.mind_concurrent_turns",
     "beyond 64 bits", "no overflow in SQLite or on D-Bus"),
    ("[limits]\nmind_concurrent_turns = 'unlimited'", "limits.mind_concurrent_turns", "whole number",
     "a mind without any limit is what caused the incident"),
    ("[limits]\nglobal_concurrent_turns = 1979-05-27", "limits.global_concurrent_turns", "a date", "no date"),
    ("[limits]\npayload_max = '65M'", "limits.payload_max", "from 1K to 64M", "above the bound"),
    ("[limits]\npayload_max = '1m'", "limits.payload_max", 'found "1m"', "m could be milli"),
    ("[limits]\npayload_max = '1.5M'", "limits.payload_max", "allowed", "no fractions"),
    ("[limits]\nrows_per_mind = 0", "limits.rows_per_mind", "from 1 to 1000000", "nothing could be sent"),
    ("[limits]\nglobal_concurent_turns = 2", "limits.global_concurent_turns",
     "Did you mean global_concurrent_turns?", "a typo must not mean unlimited"),
    ("global_concurrent_turns = 2", "global_concurrent_turns", "Did you mean limits.global_concurrent_turns?",
     "the right key without its section"),
    ("[pressure]\nfloor = 0", "pressure.floor", "from 1 to", "work must always go on"),
    ("[pressure]\nstall_after = true", "pressure.stall_after", "found true", "bool is an int to Python"),
    ("[pressure]\nstall_after = nan", "pressure.stall_after", "0.5 to 60 seconds", "TOML has nan"),
    ("[pressure]\ncalm_window = inf", "pressure.calm_window", "1 second to 1 hour", "TOML has inf"),
    ("[pressure]\nstall_after = '400ms'", "pressure.stall_after", "0.5 to 60 seconds", "below the bound"),
    ("[pressure]\nhold_off = '2h'", "pressure.hold_off", "1 second to 1 hour", "above the bound"),
    ("[turn]\nmax_turn = '1.5s'", "turn.max_turn", "whole seconds", "no whole seconds"),
    ("[turn]\nmax_turn = '1.5h 30'", "turn.max_turn", 'found "1.5h 30"; allowed', "30 of what?"),
    ("[pressure]\non_stall = 'kill'", "pressure.on_stall", 'one of "none", "freeze"', "turns are never killed"),
    ("[pressure]\ntighten = 0", "pressure.tighten", "at least 1", "0 would stop all"),
    ("[pressure]\ncalm_await = 0.5", "pressure", "calm_await 0.5 s is not below strained_await 0.5 s",
     "without a band between them it would flap"),
    ("[pressure]\nstrained_await = '100ms'", "pressure", "is not below strained_await 0.1 s", "the same"),
    ("limits = 3", "limits", "found 3; allowed: a table", "a key where a section belongs"),
    ("[limit]\nmind_concurrent_turns = 1", "limit", "Did you mean limits?", "a typo in a section"),
    ("[turn]\nio_weight = 0", "turn.io_weight", "from 1 to 10000", "cgroup v2 has no weight 0"),
    ("[turn]\nio_weight = 'unlimited'", "turn.io_weight", "from 1 to 10000", "a weight is no limit"),
    ("[turn]\nread_bandwidth = 0", "turn.read_bandwidth", "at least 1", "the kernel refuses 0"),
    ("[turn]\nwrite_iops = 4294967296", "turn.write_iops", "4294967295", "the kernel keeps 32 bits"),
    ("[turn]\nmemory_max = 1000", "turn.memory_max", "at least 1M", "nothing could start"),
    ("[turn]\nmemory_max = '9000000T'", "turn.memory_max", "allowed", "beyond int64"),
    ("[turn]\ntasks_max = 0", "turn.tasks_max", "from 1", "nothing could start"),
    ("[turn]\nmax_turn = 0", "turn.max_turn", "1 second to 30 days", "each turn would die at once"),
    ("[turn]\nmax_turn = '31d'", "turn.max_turn", "30 days", "above the bound"),
    ("[turn]\nmax_turn = '1h 30'", "turn.max_turn", "allowed", "30 of what?"),
    ("[turn]\nmax_turn = ''", "turn.max_turn", "allowed", "empty"),
    ("[device]\npath = 'mmcblk0'", "device.path", "does not begin with /", "relative to what?"),
    ('[device]\npath = "/dev/\\u0000"', "device.path", "NUL", "no path holds one"),
    ("[minds.m]\ncommand = ['/bin/true']", "minds.m", "user is missing", "nobody runs as root by accident"),
    ("[minds.m]\ncommand = ['/bin/true']\nuser = 'no such one'", "minds.m.user",
     'no user "no such one"', "found now, not at the first turn"),
    (MIND.replace("/bin/true", "true"), "minds.m.command", "the program 'true'", "no search along PATH"),
    (MIND.replace('"/bin/true"', ""), "minds.m.command", "an empty list", "nothing to run"),
    (MIND.replace('["/bin/true"]', '"/bin/true -v"'), "minds.m.command", "a list of strings", "no shell"),
    (MIND.replace('"/bin/true"', '"/bin/true", ""'), "minds.m.command", "item 2", "an empty word is a slip"),
    (MIND.replace('"/bin/true"', '"/bin/true", "a\\u0000"'), "minds.m.command", "NUL", "it would end there"),
    (MIND.replace('"/bin/true"', '"/bin/true", 1'), "minds.m.command", "item 2", "no number"),
    (MIND + "directory = 'work'", "minds.m.directory", "absolute", "relative to what?"),
    (MIND + "environment = {HOSTGUARD_TURN = 'x'}", "minds.m.environment", "HOSTGUARD_TURN", "ours"),
    (MIND + "environment = {'A=B' = 'x'}", "minds.m.environment", "'A=B'", "= ends the name"),
    (MIND + 'environment = {A = "x\\u0000"}', "minds.m.environment", "the value of A", "execve refuses it"),
    (MIND + "environment = {A = 5}", "minds.m.environment", "the value of A", "no number"),
    (MIND + "memory_max = '1G'", "minds.m.memory_max", "Did you mean minds.NAME.turn.memory_max?",
     "a mind's limits have a table of their own"),
    ("[minds.'@m']", 'minds."@m"', "does not begin with", "@ is how the CLI tells a mind from a channel"),
    ("[minds.'#m']", 'minds."#m"', "does not begin with", "# tells a channel"),
    ("[minds.'']", 'minds.""', "1 to 48 bytes", "empty"),
    ("[minds.' m']", 'minds." m"', "white space", "cannot be told from m"),
    ('[minds."a\\nb"]', r'minds."a\nb"', "control character", "would break a line of the log in two"),
    ('[minds."a\\u2028b"]', r'minds."a\U00002028b"', "line break", "Unicode's own line break"),
    ("[minds." + "m" * 49 + "]", "minds.", "1 to 48 bytes", "the unit's name would be too long"),
    ("[minds.'" + "ü" * 25 + "']", "minds.", "1 to 48 bytes", "bytes count, not characters"),
    ("[channels.x]\nminds = ['m']\n" + MIND, "channels.x", "begins with", "a channel is told by its #"),
    ("[channels.'#']\nminds = ['m']\n" + MIND, 'channels."#"', "2 to 64", "no name at all"),
    ("[channels.'#" + "c" * 64 + "']\nminds = ['m']\n" + MIND, "channels.", "2 to 64", "too long"),
    ("[channels.'#c']\nminds = ['n']\n" + MIND, 'channels."#c".minds', 'no mind "n"', "nobody to tell"),
    ("[channels.'#c']\nminds = ['m', 'm']\n" + MIND, 'channels."#c".minds', "twice", "two rows of one"),
    ("[channels.'#c']\nminds = []", 'channels."#c".minds', "empty", "a message would reach nobody"),
    ("[channels.'#c']", 'channels."#c"', "minds is missing", "a message would reach nobody"),
    ("[channels.'#c']\nminds = [" + ",".join(f"'m{i}'" for i in range(1001)) + "]", 'channels."#c".minds',
     "1001", "one transaction has its bounds"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "words", "why"), BAD)
def test_a_bad_value_is_refused_by_name(write: Write, text: str, path: str, words: str, why: str) -> None:
    file = write(text)
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: {path}"), why
    assert words in problem, why


UNREADABLE = [
    (b"[limits\n", "line 1", "not TOML"),
    (b"[limits]\nrows_per_mind = 1\nrows_per_mind = 2\n", "line 3", "one key twice"),
    (b"[limits]\n# \xff\n", "not UTF-8 (line 2)", "Latin-1 from an old editor"),
    (b"#" * (config.FILE_MAX + 1), "larger than", "no configuration is that long"),
    (b"x = " + b"[" * 100_000, "not usable", "deeper than tomllib goes"),
    (b"x = " + b"9" * 5_000, "not usable", "more digits than Python converts"),
]


@pytest.mark.parametrize(("raw", "words", "why"), UNREADABLE, ids=[row[2] for row in UNREADABLE])
def test_a_file_that_is_no_configuration_is_refused(write: Write, raw: bytes, words: str, why: str) -> None:
    file = write(raw)
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: "), why
    assert words in problem, why


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    assert "No such file" in problems(tmp_path / "none.toml")[0]


def test_a_fifo_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in problems(tmp_path / "fifo")[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's files decide who runs as whom")
def test_root_refuses_a_file_that_everyone_can_write(write: Write) -> None:
    file = write("[limits]\nrows_per_mind = 5")
    file.chmod(0o646)
    assert f"chmod o-w {file}" in problems(file)[0]
    file.chmod(0o644)
    assert config.load([file]).rows_per_mind == 5


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_file_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(raw)
    with contextlib.suppress(config.ConfigError):
        config.load([file])


def test_all_problems_of_all_files_are_told(write: Write) -> None:
    first = write("[limits]\nrows_per_mind = 0\npayload_max = 0", "a.toml")
    second = write("[turn]\nio_weight = 0", "b.toml")
    with pytest.raises(config.ConfigError) as caught:
        config.load([first, second])
    assert [problem.split(": ")[:2] for problem in caught.value.problems] == [
        [str(first), "limits.rows_per_mind"],
        [str(first), "limits.payload_max"],
        [str(second), "turn.io_weight"],
    ]
    assert caught.value.sources == (str(first), str(second))


def test_an_unreadable_file_brings_no_false_problems(write: Write) -> None:
    broken = write("[minds", "a.toml")
    channel = write("[channels.'#c']\nminds = ['m']", "b.toml")
    with pytest.raises(config.ConfigError) as caught:
        config.load([broken, channel])
    assert len(caught.value.problems) == 1


def test_drop_ins_are_laid_over_key_by_key(write: Write) -> None:
    main = write(
        "[limits]\nrows_per_mind = 5\nhistory_rows = 6\n"
        + MIND
        + "environment = {A = '1', B = '2'}\nturn.memory_max = '2M'\n"
    )
    over = write(
        "[limits]\nhistory_rows = 7\n[minds.m]\nenvironment = {B = '3'}\nturn.io_weight = 9\n", "z.toml"
    )
    loaded = config.load([main, over])
    assert (loaded.rows_per_mind, loaded.history_rows) == (5, 7)
    assert loaded.minds["m"].environment == {"A": "1", "B": "3"}
    assert loaded.minds["m"].limits == Limits(memory_max=2 << 20, io_weight=9)
    assert loaded.minds["m"].command == ("/bin/true",)
    assert loaded.sources == (str(main), str(over))


def test_a_problem_that_two_files_make_names_the_file_to_mend(write: Write) -> None:
    main = write(MIND)
    over = write("[minds.m]\nuser = 'no such one'", "z.toml")
    with pytest.raises(config.ConfigError) as caught:
        config.load([main, over])
    assert str(caught.value).startswith(f"{over}: minds.m.user")


def test_a_mind_gets_its_user_and_its_limits(write: Write) -> None:
    text = (
        f"[turn]\nmemory_max = '2M'\nio_weight = 5\n{MIND}concurrent_turns = 3\nturn.memory_max = 'unlimited'"
    )
    mind = config.load([write(text)]).minds["m"]
    assert (mind.uid, mind.gid, mind.home, mind.directory) == (ME.pw_uid, ME.pw_gid, ME.pw_dir, ME.pw_dir)
    assert set(mind.groups) == set(os.getgrouplist(ME.pw_name, ME.pw_gid))
    assert mind.limits == Limits(io_weight=5)
    assert mind.concurrent_turns == 3


def test_a_mind_without_a_command_needs_no_user(write: Write) -> None:
    mind = config.load([write("[minds.guest]")]).minds["guest"]
    assert (mind.command, mind.user) == ((), "")


# -- names and units


NAMES = st.text(min_size=1, max_size=48).filter(lambda name: names.mind_name_fault(name) is None)


UNIT_NAME_MAX = 255  # systemd's own is 256 with the NUL
WORST_TURN = f"{2**63 - 1}.{2**16}"


@given(NAMES, NAMES)
def test_two_minds_never_share_a_unit(one: str, other: str) -> None:
    assert (units.mind_slice(one) == units.mind_slice(other)) == (one == other)
    assert (units.turn_unit(one, "1") == units.turn_unit(other, "1")) == (one == other)
    assert units.parse_turn_unit(units.turn_unit(one, WORST_TURN)) == (one, WORST_TURN)


@pytest.mark.parametrize("name", ["-" * names.MIND_NAME_MAX, "\N{GRINNING FACE}" * 12, "." * 48])
def test_the_longest_name_fits_systemd(name: str) -> None:
    assert names.mind_name_fault(name) is None
    assert len(units.turn_unit(name, WORST_TURN)) <= UNIT_NAME_MAX
    assert len(units.mind_slice(name)) <= UNIT_NAME_MAX


@pytest.mark.skipif(not shutil.which("systemd-escape"), reason="no systemd-escape")
@pytest.mark.parametrize(
    "name", ["alice", "a b", "a-b", ".hidden", "..", "ü", "a\\x2db", "a:b_c.d", "\U0001f600"]
)
def test_names_are_escaped_as_systemd_does(name: str) -> None:
    done = subprocess.run(["systemd-escape", "--", name], capture_output=True, text=True, check=True)
    assert units.escape(name) == done.stdout.rstrip("\n")

"""Completion in real shells, at a terminal of their own, with the names of a running guard."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guard import ROOT, Guard, wait_for

SHIPPED = {
    "hostguard.bash": "/usr/share/bash-completion/completions/hostguard.bash",
    "_hostguard": "/usr/share/zsh/vendor-completions/_hostguard",
    "hostguard.fish": "/usr/share/fish/vendor_completions.d/hostguard.fish",
}
CONFIG = """
[limits]
global_concurrent_turns = 1
[minds.ada]
command = ["/bin/sleep", "60"]
user = "root"
[minds."big: mind"]
command = ["/bin/sleep", "60"]
user = "root"
[minds.bob]
command = ["/bin/sh", "-c", "exit 1"]
user = "root"
"""
# What was typed, once Ctrl-X Ctrl-P is pressed, in a form that no terminal wraps or colours.
BASH = r"""
. /usr/share/bash-completion/bash_completion
bind 'set enable-bracketed-paste off'; bind 'set show-all-if-ambiguous on'
dump() { printf '\nLINE<%s>\n' "$READLINE_LINE"; READLINE_LINE=; }
bind -x '"\C-x\C-p": dump'
PS1='ready> '
"""
ZSH = r"""
autoload -Uz compinit; compinit -u -D
dump() { zle -I; print -r "LINE<$BUFFER>"; BUFFER= }
zle -N dump; bindkey '^X^P' dump
setopt no_beep; unsetopt prompt_sp prompt_cr; unset zle_bracketed_paste
PS1='ready> '
"""


@pytest.fixture(scope="module")
def host(shared_guard: Guard) -> Iterator[Guard]:
    """A turn of ada's is live, 1; a row waits, 2."""
    guard = shared_guard
    for name, place in SHIPPED.items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_bytes((ROOT / "packaging/completions" / name).read_bytes())
    guard.start(CONFIG)
    guard.cli("send", "@ada", "work")
    wait_for(lambda: guard.scopes())
    guard.cli("send", "@ada", "more")
    yield guard
    guard.cli("cancel", "2")
    guard.cli("stop", "1")
    wait_for(lambda: not guard.scopes())


class Shell:
    """An interactive shell."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read(self, pattern: str) -> str:
        """All output, up to a match of the pattern."""
        said, end = "", time.monotonic() + 60
        while not re.search(pattern, said):
            assert time.monotonic() < end, f"no {pattern} in {said!r}"
            if select.select([self._terminal], [], [], 0.1)[0]:
                said += os.read(self._terminal, 1 << 16).decode(errors="replace")
        return said

    def completed(self, line: str) -> str:
        """The line after one TAB."""
        self.type(line + "\t")
        time.sleep(0.2)  # zsh drops what is typed while it completes
        self.type("\x18\x10")
        found = re.search(r"LINE<(.*)>", self.read(r"LINE<.*>"))
        assert found is not None
        return found[1]


@contextmanager
def shell(*argv: str, **environment: str) -> Iterator[Shell]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        argv,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", "HOME": "/root", **environment},
    )
    os.close(theirs)
    try:
        made = Shell(ours)
        made.read("ready> ")
        yield made
    finally:
        os.close(ours)
        process.kill()
        process.wait()


CASES = [
    ("hostguard sta", "hostguard status "),
    ("hostguard send @a", "hostguard send @ada "),
    ("hostguard pause ad", "hostguard pause ada "),
    ("hostguard pause @ad", "hostguard pause @ada "),
    ("hostguard pause bi", r"hostguard pause big:\ mind "),
    ("hostguard pause big:", r"hostguard pause big:\ mind "),
    ("hostguard run --mind a", "hostguard run --mind ada "),
    ("hostguard run --mind=a", "hostguard run --mind=ada "),
    ("hostguard why ", "hostguard why "),  # two rows: there is a choice
    ("hostguard why 2", "hostguard why 2 "),
    ("hostguard stop ", "hostguard stop 1 "),
    ("hostguard queue --state in", "hostguard queue --state in_turn "),
    ("hostguard dead retry ", "hostguard dead retry "),  # there is none
    ("hostguard dead re", "hostguard dead retry "),
    ("hostguard mind token --js", "hostguard mind token --json "),
]


def check(made: Shell) -> None:
    for line, wanted in CASES:
        assert made.completed(line) == wanted, line


def test_bash(host: Guard, tmp_path: Path) -> None:
    rc = tmp_path / "rc"
    rc.write_text(BASH)
    with shell("bash", "--rcfile", str(rc), "-i") as made:
        check(made)


def test_zsh(host: Guard, tmp_path: Path) -> None:
    (tmp_path / ".zshrc").write_text(ZSH)
    with shell("zsh", "-i", ZDOTDIR=str(tmp_path)) as made:
        check(made)


FISH = [
    ("hostguard sta", ["status"]),
    ("hostguard send @a", ["@ada"]),
    ("hostguard send ", ["@ada", "@big: mind", "@bob"]),
    ("hostguard pause a", ["ada"]),
    ("hostguard why ", ["1\tada in_turn", "2\tada queued"]),
    ("hostguard stop ", ["1\tada"]),
    ("hostguard logs ", ["1\tada", "ada", "big: mind", "bob"]),
    ("hostguard dead retry ", []),
]


def test_fish(host: Guard) -> None:
    for line, wanted in FISH:
        done = subprocess.run(
            ["fish", "-c", "complete -C $argv[1]", line], capture_output=True, text=True, timeout=60
        )
        found = done.stdout.splitlines()
        assert [item if "\t" in wanted[0] else item.split("\t")[0] for item in sorted(found)] == wanted, done


def test_names_come_at_once_also_when_nothing_answers(host: Guard) -> None:
    """A TAB must not hang, nor print an error into the line."""
    host.stop()
    subprocess.run(["systemctl", "stop", "hostguard.socket"], check=True)
    environment = {**os.environ, "_HOSTGUARD_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    done = subprocess.run(
        ["hostguard"], env={**environment, "COMP_WORDS": "hostguard stop "}, capture_output=True, timeout=30
    )
    host.restart()
    assert (done.stdout.strip(), done.stderr) == (b"", b"")

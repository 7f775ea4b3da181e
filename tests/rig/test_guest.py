"""The guest, from outside: what comes through, and that nothing stays behind. Runs on the machine, as root."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

RIG = Path(__file__).parent


@pytest.fixture(scope="session")
def tree() -> Path:
    made = subprocess.run([RIG / "tree", "bookworm"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.strip())


@pytest.fixture(scope="session")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the guests of these tests have their folders, and no others."""
    return tmp_path_factory.mktemp("cache") / "hostguard-rig/guests"


@pytest.fixture
def guest(tree: Path, guests: Path) -> Iterator[list[str]]:
    """The command, and in the end the proof that nothing is left of it."""
    mounts, empty = Path("/proc/self/mountinfo").read_text(), cgroups()
    yield ["env", f"XDG_CACHE_HOME={guests.parents[1]}", str(RIG / "guest"), "-r", str(tree)]
    assert folders(guests) == set()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    end = time.monotonic() + 3  # other guests of this machine are without a process for a moment only
    while cgroups() - empty:
        assert time.monotonic() < end, cgroups()
        time.sleep(0.1)


def run(command: list[str], input: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=input, capture_output=True, text=True, timeout=60, check=False)


def cgroups() -> set[str]:
    """The guests' cgroups without a process, seen without a mount of the machine's own."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"mount -t cgroup2 none {folder}; cd {folder}; grep -l 'populated 0' hostguard-guest-*/cgroup.events"
        return set(run(["unshare", "--mount", "sh", "-c", script]).stdout.split())


def folders(guests: Path) -> set[str]:
    return {path.name for path in guests.glob("*/")}


def wait_for_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


# -- what comes through


def test_standard_streams_and_the_exit_status_are_the_commands(guest: list[str]) -> None:
    done = run([*guest, "--", "sh", "-c", "cat; echo oops >&2; exit 7"], input="one\ntwo\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "one\ntwo\n", "oops\n")


def test_arguments_variables_and_the_folder_arrive_unchanged(guest: list[str]) -> None:
    odd = "a b $HOME ${x} $$ %n %% \\ \"'"
    script = 'printf "%s|%s|%s" "$1" "$VALUE" "$PWD"'
    done = run([*guest, "-e", f"VALUE={odd}", "-w", "/usr/lib", "--", "sh", "-c", script, "sh", odd])
    assert done.stdout == f"{odd}|{odd}|/usr/lib", done


def test_folders_are_shown_and_the_tree_is_not_written_to(
    guest: list[str], tree: Path, tmp_path: Path
) -> None:
    script = "echo in >/rw/out && echo in >/etc/new && ! echo in >/ro/out && cat /ro/file"
    (tmp_path / "file").write_text("shown")
    done = run([*guest, "-b", f"{tmp_path}:/rw", "-B", f"{tmp_path}:/ro", "--", "sh", "-c", script])
    assert (done.returncode, done.stdout) == (0, "shown"), done
    assert (tmp_path / "out").read_text() == "in\n"
    assert not (tree / "etc/new").exists()


def test_systemd_is_whole_and_the_machines_settings_are_out_of_reach(guest: list[str]) -> None:
    script = """
set -ex
test "$(cat /proc/1/comm)" = systemd
test "$(systemctl is-system-running --wait)" = running
systemd-run --quiet --on-active=1ms --unit=timer touch /run/fired
systemd-run --quiet --scope --unit=turn systemd-cat sh -c "echo spoken; sleep 0.3"
journalctl --sync
journalctl --quiet --output=cat --unit=turn.scope | grep -qx spoken
test "$(runuser -u nobody -- id -un)" = nobody
curl --silent --max-time 1 http://127.0.0.1:1 || test $? = 7
if sh -c 'echo "$(cat /proc/sys/kernel/panic)" >/proc/sys/kernel/panic' 2>/dev/null; then exit 9; fi
until test -e /run/fired; do sleep 0.01; done
"""
    done = run([*guest, "--", "sh", "-c", script])
    assert done.returncode == 0, done


def test_disk_is_on_the_machines_own_disk(guest: list[str], guests: Path) -> None:
    done = run([*guest, "--", "stat", "--format=%d", "/disk"])
    assert int(done.stdout) == guests.stat().st_dev


def test_a_terminal_is_passed_through_and_given_back_as_it_was(guest: list[str]) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    termios.tcsetwinsize(ours, (33, 111))
    script = "trap 'echo interrupted; exit 9' INT; test -t 0 && test -t 1 && stty size; sleep 60 & wait"
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *guest, "--", "sh", "-c", script],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    seen = b""
    while b"33 111" not in seen:
        seen += os.read(ours, 4096)
    os.write(ours, b"\x03")
    assert process.wait(30) == 9
    while b"interrupted" not in seen:  # what was typed is echoed apart from it
        assert select.select([ours], [], [], 5)[0], seen
        seen += os.read(ours, 4096)
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_what_cannot_work_is_named(guest: list[str], tmp_path: Path) -> None:
    for command, problem in (
        ([*guest, "-r", str(tmp_path), "--", "true"], "has no systemd"),
        ([*guest[:-2], "--", "true"], "-r is needed"),
        ([*guest, "-b", "/no/such", "--", "true"], "no such file or folder: /no/such"),
        (guest, "no command"),
    ):
        done = run(command)
        assert (done.returncode, problem in done.stderr) == (125, True), done


# -- how it ends


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_goes_to_the_command_which_may_end_in_order(
    guest: list[str], number: int, status: int
) -> None:
    script = "trap 'echo in order; exit 3' INT TERM; echo up; while sleep 0.1; do :; done"
    with start([*guest, "--", "sh", "-c", script]) as process:
        assert wait_for_line(process) == "up\n"
        process.send_signal(number)
        assert wait_for_line(process) == "in order\n"
        assert process.wait(10) == status


def test_a_command_that_ends_the_guest_s_bus_does_not_pass(guest: list[str]) -> None:
    done = run([*guest, "--", "sh", "-c", "systemctl kill --signal=KILL dbus.service; sleep 1; exit 3"])
    assert done.returncode == 125, done
    assert "bus" in done.stderr


def test_the_second_signal_ends_it_at_once(guest: list[str]) -> None:
    script = "trap '' INT; echo up; while sleep 0.1; do :; done"
    with start([*guest, "--", "sh", "-c", script]) as process:
        assert wait_for_line(process) == "up\n"
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130


def test_a_signal_at_any_moment_of_the_boot(guest: list[str], tmp_path: Path) -> None:
    """Before each line of the script that is run until the command is, bash sends itself a SIGTERM."""
    seen, bash_env = tmp_path / "lines", tmp_path / "trap"
    bash_env.write_text(
        """step() {
    [ "$1" != 1 ] || SCRIPT=''  # it ends: the trap for EXIT
    [ "$BASHPID $0" = "$$ $SCRIPT" ] || return 0
    echo "$1" >>"$SEEN"
    [ "$1" != "$AT" ] || { AT=''; kill -TERM $$; }
}
set -T
trap 'step $LINENO' DEBUG
"""
    )
    settings = {"BASH_ENV": str(bash_env), "SCRIPT": str(RIG / "guest"), "SEEN": str(seen), "AT": ""}

    def stopped(line: int) -> tuple[int, int, str, set[str]]:
        cache = tmp_path / str(line)
        at = [f"{name}={value}" for name, value in {**settings, "AT": line, "XDG_CACHE_HOME": cache}.items()]
        done = run([*guest[:2], *at, *guest[2:], "--", "sleep", "9"])
        return line, done.returncode, done.stderr, folders(cache / "hostguard-rig/guests")

    everything = ["env", *[f"{name}={value}" for name, value in settings.items()], *guest[1:], "--", "true"]
    assert run(everything).returncode == 0
    lines = sorted({int(line) for line in seen.read_text().split()})
    assert len(lines) > 30, lines
    with ThreadPoolExecutor(4) as pool:
        for line, status, said, left in pool.map(stopped, lines):
            assert status in (143, -signal.SIGTERM), (line, status, said)
            assert "guest: " not in said, (line, said)  # as bash tells of a fault
            assert left == set(), line


def test_the_next_guest_sweeps_up_after_a_killed_one(guest: list[str], guests: Path) -> None:
    with start([*guest, "--", "sh", "-c", "echo up; sleep 60"]) as process:
        assert wait_for_line(process) == "up\n"
        process.kill()
    (killed,) = folders(guests)
    assert run([*guest, "--", "true"]).returncode == 0
    assert killed not in folders(guests)


def test_two_at_once_do_not_meet(guest: list[str]) -> None:
    script = "mkdir /disk/one && systemd-run --quiet --unit=one sleep 60 && echo up; read code; exit $code"
    command = [*guest, "--", "sh", "-c", script]
    with start(command) as one, start(command) as two:
        assert wait_for_line(one) == wait_for_line(two) == "up\n"
        one.communicate("5\n", timeout=20)
        two.communicate("6\n", timeout=20)
        assert (one.returncode, two.returncode) == (5, 6)


def test_boot_and_teardown_are_quick(guest: list[str]) -> None:
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert run([*guest, "--", "true"]).returncode == 0
        took.append(time.monotonic() - began)
    assert min(took) < 10  # half a second on a quiet machine; beside three other guests it takes longer


@contextlib.contextmanager
def start(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()

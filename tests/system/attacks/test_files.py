"""A mind's files as traps: what bob puts where the guard reads harms nobody but bob.

All attacks are in place before the guard starts, so that each start and stop is under attack, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guard import Guard, run, wait_for
from guarded import LONG_S, GuardedHost

ADA, BOB, EVE = (Path("/home", name) for name in ("ada", "bob", "eve"))
PRIVATE = {"default": "private-of-ada", "gateUnmatched": False}
OWN = {"rules": [{"channel": "#x", "session": "own-of-bob"}]}
STOP_S = 15.0  # such a read once held up each stop for 40 s
# Each mind of bob, and its file.
FILES = {
    "link": BOB / "link.json",
    "folder": BOB / "folder/routes.json",
    "proc": BOB / "proc.json",
    "fifo": BOB / "fifo.json",
    "silent": BOB / "silent/routes.json",
    "shared": BOB / "shared/routes.json",
    "lease": BOB / "lease.json",
    "sparse": BOB / "sparse.json",
    "endless": BOB / "endless.json",
    "swapped": BOB / "swapped.json",
    "middle": BOB / "middle/sub/routes.json",
}
# A lease on the file; SIGIO, by which the kernel asks for it, is ignored.
LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
signal.pause()
"""
# What is at the first path is, in turn, what is at the second, and at the third.
SWAP = """
import os, sys, time
there, one, two = sys.argv[1:]
for _ in range(250):
    os.rename(there, one + ".away"); os.rename(two, there); time.sleep(0.004)
    os.rename(there, two); os.rename(one + ".away", there); time.sleep(0.004)
"""


def become(user: str) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]


def python(user: str, script: str, *args: Path) -> subprocess.Popen[str]:
    argv = [*become(user), sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def write(path: Path, user: str, **routes: object) -> None:
    """Replace the file, as its user."""
    new = path.with_name("new")
    subprocess.run([*become(user), "tee", new], input=json.dumps(routes), text=True, stdout=-3, check=True)
    subprocess.run([*become(user), "mv", "-T", new, path], check=True)


class Silent:
    """A FUSE of bob's that never answers, mounted as fusermount does."""

    def __init__(self, place: Path, options: str = "") -> None:
        self.place = place
        bob = pwd.getpwnam("bob")
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        data = f"fd={self.device},rootmode=40000,user_id={bob.pw_uid},group_id={bob.pw_gid}{options}"
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.mount(b"silent", os.fsencode(place), b"fuse", ctypes.c_ulong(0), data.encode())
        assert done == 0, os.strerror(ctypes.get_errno())

    def end(self) -> None:
        run("umount", "--lazy", str(self.place))
        os.close(self.device)


class Attacked(GuardedHost):
    """A guard under all attacks."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard)
        FILES["link"].symlink_to(ADA / "routes.json")
        FILES["proc"].symlink_to(f"/proc/1/root{ADA}/routes.json")
        FILES["folder"].parent.symlink_to(ADA)
        FILES["endless"].symlink_to("/dev/zero")
        os.mkfifo(FILES["fifo"])
        for name in ("silent", "shared"):
            FILES[name].parent.mkdir()
            FILES[name].write_text(json.dumps(OWN))
        with FILES["sparse"].open("w") as file:
            file.truncate(8 << 30)
        FILES["middle"].parent.mkdir(parents=True)
        for name in ("lease", "swapped", "middle"):
            FILES[name].write_text(json.dumps(OWN))
        (BOB / "link-to-ada").symlink_to(ADA / "routes.json")
        (BOB / "other").mkdir()
        (BOB / "other/sub").symlink_to(ADA)
        run("chown", "--no-dereference", "--recursive", "bob:", str(BOB))
        write(ADA / "routes.json", "ada", **PRIVATE)
        (ADA / "routes.json").chmod(0o600)
        write(EVE / "routes.json", "eve", rules=[{"channel": "#x", "session": "first"}])
        self.traps = [Silent(FILES["silent"].parent), Silent(FILES["shared"].parent, ",allow_other")]
        self.lease = python("bob", LEASE, FILES["lease"])
        assert self.lease.stdout is not None
        assert self.lease.stdout.readline() == "held\n"
        minds = {"ada": ("ada", ADA / "routes.json"), "eve": ("eve", EVE / "routes.json")}
        minds |= {name: ("bob", path) for name, path in FILES.items()}
        text = '[minds.{}]\ncommand = ["/bin/true"]\nuser = "{}"\nroutes = "{}"\n'
        self.config = "".join(text.format(name, *mind) for name, mind in minds.items())

    def close(self) -> None:
        self.api.close()
        self.guard.close()
        self.lease.kill()
        self.lease.communicate()
        for trap in self.traps:
            trap.end()

    def route(self, mind: str) -> dict[str, str]:
        found: dict[str, str] = self.post(f"/v1/minds/{mind}/route", channel="#x")
        return found

    def unread(self, mind: str, said: str) -> None:
        """The mind's routes are not known, for this reason."""
        wait_for(lambda: said in self.route(mind)["text"], LONG_S)
        assert self.route(mind)["action"] == "held"

    def follows(self, session: str) -> None:
        """The guard reads eve's file when it changes."""
        write(EVE / "routes.json", "eve", rules=[{"channel": "#x", "session": session}])
        wait_for(lambda: self.route("eve")["session"] == session)


@pytest.fixture(scope="module")
def host(_installed: None) -> Iterator[Attacked]:
    for user in ("ada", "bob", "eve"):
        run("useradd", "--create-home", user)
        Path("/home", user).chmod(0o700)
    made = Attacked(Guard())
    try:
        made.guard.start(made.config)
        yield made
    finally:
        made.close()
        for user in ("ada", "bob", "eve"):
            run("userdel", "--force", "--remove", user)


def test_a_lease_on_the_file(host: Attacked) -> None:
    """It comes first: the kernel takes a lease away 45 s after somebody wanted to read."""
    host.unread("lease", "another process holds a lease on it")
    row = host.send("lease", "keep me", channel="#x")
    host.follows("while-leased")
    assert host.row(row)["hold"]["reason"] == "routes_unread"
    host.lease.kill()
    host.lease.wait()
    run("touch", str(FILES["lease"]))
    assert host.done(row)[0]["session"] == "own-of-bob"


@pytest.mark.parametrize("mind", ["link", "folder", "proc"])
def test_a_link_to_the_private_routes_of_another_mind(host: Attacked, mind: str) -> None:
    host.unread(mind, "cannot be read: Permission denied")
    assert host.route("ada")["session"] == "private-of-ada"
    row = host.send(mind, "keep me", channel="#x")
    found = host.row(row)
    assert (found["state"], found["hold"]["reason"]) == ("queued", "routes_unread")
    said = host.guard.cli("why", str(row)).stdout
    assert "the mind's routes are not known yet" in said
    assert "Permission denied" in said

    path = FILES[mind]
    if mind == "folder":
        path.parent.unlink()
        subprocess.run([*become("bob"), "mkdir", path.parent], check=True)
    write(path, "bob", **OWN)
    assert host.done(row)[0]["session"] == "own-of-bob"


def test_a_file_that_never_answers_keeps_no_other_mind_from_its_routes(host: Attacked) -> None:
    for mind in ("silent", "shared"):
        host.unread(mind, "")
    host.unread("fifo", "is not a regular file")
    host.follows("second")
    assert host.route("ada")["session"] == "private-of-ada"
    host.unread("silent", "no answer within 10 s")


@pytest.mark.parametrize("how", ["restart", "stop", "kill"])
def test_neither_a_stop_nor_a_start_waits_for_it_and_no_message_slips_through(
    host: Attacked, how: str
) -> None:
    """Without its routes, bob's mind once got what they would have kept back."""
    gated = host.send("shared", "no rule matches", channel="#other")
    begun = time.monotonic()
    if how == "kill":
        host.guard.kill()
    elif how == "stop":
        host.guard.stop()
    host.guard.restart()
    assert time.monotonic() - begun < STOP_S
    assert host.row(gated)["hold"]["reason"] == "routes_unread"
    host.follows(f"after-{how}")
    if how == "kill":  # the last: bob takes the trap away
        host.traps.pop().end()
        wait_for(lambda: host.row(gated)["state"] == "gated", LONG_S)
        assert host.done(host.send("shared", "a rule matches", channel="#x"))[0]["session"] == "own-of-bob"


@pytest.mark.parametrize(
    ("mind", "said"), [("sparse", "is larger than 262144 bytes"), ("endless", "is not a regular file")]
)
def test_a_file_of_gigabytes(host: Attacked, mind: str, said: str) -> None:
    host.unread(mind, said)
    status = Path(f"/proc/{host.guard.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    assert peak < 200 << 10
    write(FILES[mind], "bob", **OWN)
    wait_for(lambda: host.route(mind)["session"] == "own-of-bob")


@pytest.mark.parametrize(
    ("mind", "there", "other"),
    [("swapped", FILES["swapped"], BOB / "link-to-ada"), ("middle", BOB / "middle", BOB / "other")],
)
def test_what_is_swapped_for_a_link_while_it_is_read(
    host: Attacked, mind: str, there: Path, other: Path
) -> None:
    seen = set()
    wait_for(lambda: host.route(mind)["session"] == "own-of-bob")
    swap = python("bob", SWAP, there, BOB / "aside", other)
    while swap.poll() is None:
        seen.add(host.route(mind)["session"])
        time.sleep(0.01)
    swap.communicate()
    assert swap.returncode == 0
    assert seen <= {"own-of-bob", "main"}  # between two renames bob has no file
    host.follows(f"after-{mind}")
    row = host.send(mind, "x", channel="#x")
    assert host.done(row)[0]["session"] == "own-of-bob"


def test_no_helper_is_left(host: Attacked) -> None:
    """Nothing of bob's runs, but what waits 10 s at most for the file that never answers."""
    spawner = [unit for unit in run("systemctl", "list-units", "--plain", "hostguard-spawner-*").stdout.split()
               if unit.startswith("hostguard-spawner")]  # fmt: skip
    cgroup = Path("/sys/fs/cgroup/system.slice", spawner[-1], "cgroup.procs")
    bob = pwd.getpwnam("bob").pw_uid

    def helpers() -> list[str]:
        return [pid for pid in cgroup.read_text().split() if os.stat(f"/proc/{pid}").st_uid == bob]

    wait_for(lambda: not helpers(), LONG_S)

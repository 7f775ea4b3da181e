"""The configuration of resident minds, schedules and the minds' endpoint."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hostguard.config import load as config
from hostguard.config.build import SCRIPT_MAX
from hostguard.core.model import Mind, Schedule, WakeOn

ME = pwd.getpwuid(os.getuid()).pw_name
HASH = "0123456789abcdef" * 4
URL = 'url = "http://127.0.0.1:4100"\n'
RESIDENT = f"[minds.r]\n{URL}"
EXEC = f'[minds.m]\ncommand = ["/bin/true"]\nuser = "{ME}"\n'
GUEST = "[minds.guest]\n"
Write = Callable[..., Path]


def problem(file: Path) -> str:
    with pytest.raises(config.ConfigError) as caught:
        config.load([file])
    (only,) = caught.value.problems
    return only.removeprefix(f"{file}: ")


# -- minds


MINDS: list[tuple[str, dict[str, Any], str]] = [
    # (its table after [minds.r], what it gives, why it is a case)
    (URL, {"url": "http://127.0.0.1:4100"}, "a server needs no user"),
    ('url = "http://localhost:1/"', {"url": "http://127.0.0.1:1"}, "a bare / is no path"),
    ('url = "http://LocalHost:1"', {"url": "http://127.0.0.1:1"}, "it is not looked up"),
    ('url = "http://[::1]:65535"', {"url": "http://[::1]:65535"}, "IPv6, the highest port"),
    ('url = "http://mind_1.lan:80"', {"url": "http://mind_1.lan:80"}, "a host by its name"),
    (URL + 'unit = "r.service"', {"unit": "r.service"}, "a service that runs it"),
    (URL + 'unit = "hostguard-mind@r.service"', {"unit": "hostguard-mind@r.service"}, "an instance"),
    (URL + "unit = 'a\\x2db.service'", {"unit": "a\\x2db.service"}, "an escaped name"),
    (URL + f'token = "sha256:{HASH}"', {"token": HASH}, "a hash, never the token"),
    (URL + 'idle_end = "90s"', {"idle_end": 90}, "a length of time"),
    (URL + "sleep_after = 0", {"sleep_after": 0}, "sleeps again at once"),
    (URL + "wake_on = {dm = false}", {"wake_on": WakeOn(dm=False)}, "the others keep their defaults"),
    (
        URL + 'wake_on = {mention = false, channels = ["#u*"], senders = ["a", "*b"]}',
        {"wake_on": WakeOn(mention=False, channels=("#u*",), senders=("a", "*b"))},
        "patterns",
    ),
    (URL + "wake_on.channels = []", {}, "a drop-in takes patterns away"),
    ("sleep_after = 5", {"sleep_after": 5}, "an exec mind sleeps, too"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "why"), MINDS)
def test_a_mind_is_read(write: Write, text: str, expected: dict[str, Any], why: str) -> None:
    mind = config.load([write(f"[minds.r]\n{text}")]).minds["r"]
    default = Mind("r", url=mind.url)
    changed = {
        name: getattr(mind, name) for name in Mind.__slots__ if getattr(mind, name) != getattr(default, name)
    }
    assert {"url": mind.url, **changed} == {"url": mind.url, **expected}, why


def test_routes_are_files_of_the_minds_user(write: Write) -> None:
    mind = config.load([write(f'{RESIDENT}routes = "/r.json"\nuser = "{ME}"')]).minds["r"]
    assert (mind.routes, mind.user, mind.uid) == ("/r.json", ME, os.getuid())


BAD_MINDS = [
    # (file, key path, words that the message has, why it is a case)
    ("[minds.Volute]", "minds.Volute", "the guard itself", "it would speak as the guard"),
    (EXEC + URL, "minds.m.url", "a command or a url, not both", "which of them would get a message?"),
    ('[minds.r]\nunit = "r.service"', "minds.r.unit", "with a url", "what would be started takes nothing"),
    ("[minds.r]\nidle_end = 5", "minds.r.idle_end", "with a url", "a command's end is seen"),
    (RESIDENT + 'routes = "/r.json"', "minds.r.routes", "needs a user", "routes write files"),
    (RESIDENT + 'routes = "r.json"', "minds.r.routes", "begin with /", "relative to what?"),
    ('[minds.r]\nurl = "https://127.0.0.1:1"', "minds.r.url", "http://", "no TLS to a loopback server"),
    ('[minds.r]\nurl = "http://127.0.0.1:1/message"', "minds.r.url", "a path", "it would stand there twice"),
    ('[minds.r]\nurl = "http://127.0.0.1:1?a"', "minds.r.url", "allowed", "a query"),
    ('[minds.r]\nurl = "http://127.0.0.1"', "minds.r.url", "no port", "80 is never meant"),
    ('[minds.r]\nurl = "http://127.0.0.1:0"', "minds.r.url", "no port", "nothing listens there"),
    ('[minds.r]\nurl = "http://127.0.0.1:65536"', "minds.r.url", "no port", "ports have 16 bits"),
    ('[minds.r]\nurl = "http://u:p@127.0.0.1:1"', "minds.r.url", "allowed", "no password in a log"),
    ('[minds.r]\nurl = "http://[:::]:1"', "minds.r.url", "allowed", "no address"),
    ('[minds.r]\nurl = "http://a b:1"', "minds.r.url", "allowed", "no host"),
    ('[minds.r]\nurl = "http://a:1\\n"', "minds.r.url", "allowed", "a line end"),
    ('[minds.r]\nurl = "127.0.0.1:1"', "minds.r.url", "allowed", "no scheme"),
    (RESIDENT + 'unit = "r"', "minds.r.unit", "the name of the service", "systemd would not know it"),
    (RESIDENT + 'unit = "r.scope"', "minds.r.unit", "the name of the service", "cannot be started"),
    (RESIDENT + 'unit = "r@.service"', "minds.r.unit", "template", "cannot be started"),
    (RESIDENT + 'unit = "../r.service"', "minds.r.unit", "allowed", "no path"),
    (RESIDENT + 'unit = "hostguard.service"', "minds.r.unit", "unit of hostguard itself", "sleep would stop the guard"),
    (RESIDENT + 'unit = "hostguard-turn-r-1.service"', "minds.r.unit", "unit of hostguard itself", "looks like a turn"),
    (RESIDENT + f'token = "{HASH}"', "minds.r.token", '"sha256:" and', "it may be the token itself"),
    (RESIDENT + f'token = "sha256:{HASH[1:]}"', "minds.r.token", "64", "a digit is lost"),
    (RESIDENT + f'token = "sha256:{HASH.upper()}"', "minds.r.token", "64", "it would never be equal"),
    (RESIDENT + "idle_end = 0", "minds.r.idle_end", "1 second to", "each turn would end at once"),
    (RESIDENT + "sleep_after = '31d'", "minds.r.sleep_after", "30 days", "above the bound"),
    (RESIDENT + "wake_on = true", "minds.r.wake_on", "a table", "no table"),
    (RESIDENT + "wake_on.dm = 'yes'", "minds.r.wake_on.dm", "true or false", "no boolean"),
    (RESIDENT + "wake_on.dms = true", "minds.r.wake_on.dms", "Did you mean", "a slip"),
    (RESIDENT + "wake_on.channels = '#a'", "minds.r.wake_on.channels", "a list", "no list"),
    (RESIDENT + "wake_on.senders = ['a', 1]", "minds.r.wake_on.senders", "item 2", "no text"),
    (RESIDENT + "[minds.s]\n" + URL, "minds.s.url", '"r"', "a message does not say for whom it is"),
    (RESIDENT + 'unit = "x.service"\n[minds.s]\nurl = "http://127.0.0.1:2"\nunit = "x.service"',
     "minds.s.unit", '"r"', "one that sleeps would stop the other"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "words", "why"), BAD_MINDS)
def test_a_bad_mind_is_refused_by_name(write: Write, text: str, path: str, words: str, why: str) -> None:
    told = problem(write(text))
    assert told.startswith(f"{path}: "), why
    assert words in told, why


def test_what_may_be_a_token_is_shown_nowhere(write: Write) -> None:
    told = problem(write(RESIDENT + 'token = "sha256:secret"'))
    assert told.startswith("minds.r.token: ")
    assert "secret" not in told


# -- the endpoint


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4200", ("127.0.0.1", 4200)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_the_endpoint_listens_on_loopback(write: Write, text: str, address: tuple[str, int]) -> None:
    assert config.load([write(f'[events]\nlisten = "{text}"')]).events_listen == address


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:4200", "192.168.1.2:4200", "[::]:4200", "::1:4200", "127.0.0.1", "127.0.0.1:0", ":4200",
     "127.0.0.1:65536", "http://127.0.0.1:4200", "localhost.:1", "127.0.0.1:4200\\n"],
)  # fmt: skip
def test_the_endpoint_listens_nowhere_else(write: Write, text: str) -> None:
    assert problem(write(f'[events]\nlisten = "{text}"')).startswith("events.listen: ")


# -- schedules


NIGHTLY = '[schedules.s]\nmind = "m"\ncron = "0 3 * * *"\n'
AT = int(datetime(2027, 1, 1, 9, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def in_kolkata() -> Iterator[None]:
    """The host's time is 5:30 ahead."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Kolkata"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def schedule(**more: Any) -> Schedule:
    return Schedule("s", **{"mind": "m", "message": "x", **more})


SCHEDULES = [
    (NIGHTLY + 'message = "x"', schedule(cron="0 3 * * *"), "the least of a schedule"),
    (NIGHTLY + 'script = "a | b"', schedule(cron="0 3 * * *", script="a | b", message=None), "a script"),
    ('[schedules.s]\nmind = "m"\nmessage = "x"\nat = 2027-01-01T09:00:00Z', schedule(at=AT), "a TOML time"),
    ('[schedules.s]\nmind = "m"\nmessage = "x"\nat = "2027-01-01T10:00:00+01:00"', schedule(at=AT), "a text"),
    ('[schedules.s]\nmind = "m"\nmessage = "x"\nat = 2107-06-08T12:04:10.096Z', schedule(at=4336977850096),
     "not lost to rounding"),
    ('[schedules.s]\nmind = "m"\nmessage = "x"\nat = 2027-01-01T14:30:00', schedule(at=AT), "the host's time"),
    ('[schedules.s]\nmind = "m"\nmessage = "x"\nat = "2027-01-01 14:30"', schedule(at=AT), "the host's time"),
    (
        NIGHTLY + 'message = "x"\nsession = "$new"\ntimezone = "Europe/Berlin"\ncatch_up = "all"\n'
        'catch_up_window = "2h"\nwhile_sleeping = "trigger-wake"\nenabled = false',
        schedule(cron="0 3 * * *", session="$new", timezone="Europe/Berlin", catch_up="all",
                 catch_up_window=7200, while_sleeping="trigger-wake", enabled=False),
        "all of it",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "why"), SCHEDULES)
@pytest.mark.usefixtures("in_kolkata")
def test_a_schedule_is_read(write: Write, text: str, expected: Schedule, why: str) -> None:
    assert config.load([write(EXEC + text)]).schedules == {"s": expected}, why


BAD_SCHEDULES = [
    # (what stands beside the minds m (exec), r (resident, no user) and guest; key path; words; why)
    ('cron = "* * * * *"\nmessage = "x"', "schedules.s", "mind must name a configured mind: guest, m, r",
     "for whom?"),
    ('mind = "n"\ncron = "* * * * *"\nmessage = "x"', "schedules.s", "guest, m, r", "no such mind"),
    ('mind = "m"\nmessage = "x"', "schedules.s", "either cron or at", "when?"),
    ('mind = "m"\nmessage = "x"\ncron = "* * * * *"\nat = 2027-01-01T09:00:00', "schedules.s",
     "either cron or at", "which of them?"),
    ('mind = "m"\ncron = "* * * * *"', "schedules.s", "either message or script", "what?"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\nscript = "y"', "schedules.s",
     "either message or script", "which of them?"),
    (f'mind = "m"\ncron = "* * * * *"\nmessage = "{"x" * 1000}"\n[limits]\npayload_max = 1024', "schedules.s",
     "limits.payload_max", "could never be stored"),
    ('mind = "r"\ncron = "* * * * *"\nscript = "y"', "schedules.s", "r has no user", "who runs it?"),
    ('mind = "guest"\ncron = "* * * * *"\nmessage = "x"', "schedules.s", "accepts no messages", "to nothing"),
    ('mind = "m"\ncron = "* * * *"\nmessage = "x"', "schedules.s.cron", "five fields", "a field is missing"),
    ('mind = "m"\ncron = "60 * * * *"\nmessage = "x"', "schedules.s.cron", "allowed: minute hour",
     "no such minute"),
    ('mind = "m"\ncron = "0 0 30 2 *"\nmessage = "x"', "schedules.s.cron", "no date matches it", "no such day"),
    ('mind = "m"\nmessage = "x"\nat = 2027-01-01', "schedules.s.at", "a date and time", "no time of day"),
    ('mind = "m"\nmessage = "x"\nat = "tomorrow"', "schedules.s.at", "a date and time", "no time"),
    ('mind = "m"\nmessage = "x"\nat = 1800000000', "schedules.s.at", "a date and time", "seconds or ms?"),
    ('mind = "m"\nmessage = "x"\nat = 0001-01-01T00:00:00', "schedules.s.at", "a date and time",
     "before the epoch, and before what Python converts"),
    ('mind = "m"\nmessage = "x"\nat = 9999-12-31T23:59:59-12:00', "schedules.s.at", "a date and time",
     "past what can be shown"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = ""', "schedules.s.message", "empty", "says nothing"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\nsession = "$old"', "schedules.s.session", '"$new"',
     "$ is the guard's own"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\ntimezone = "CEST"', "schedules.s.timezone",
     "unknown on this host", "no name of a zone"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\ntimezone = "../passwd"', "schedules.s.timezone",
     "allowed", "no path"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\ntimezone = "America"', "schedules.s.timezone",
     "unknown on this host", "a folder of zones"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\ncatch_up = "maybe"', "schedules.s.catch_up",
     '"skip", "once", "all"', "no such way"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\ncatch_up_window = "31d"', "schedules.s.catch_up_window",
     "30 days", "above the bound"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\nwhile_sleeping = "wake"', "schedules.s.while_sleeping",
     '"trigger-wake"', "no such way"),
    ('mind = "m"\ncron = "* * * * *"\nmessage = "x"\nenabled = 1', "schedules.s.enabled", "true or false",
     "no boolean"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "words", "why"), BAD_SCHEDULES)
def test_a_bad_schedule_is_refused_by_name(write: Write, text: str, path: str, words: str, why: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.load([file := write(f"{EXEC}{RESIDENT}{GUEST}[schedules.s]\n{text}")])
    # What a bad key leaves out may be missed as well.
    told = caught.value.problems[0].removeprefix(f"{file}: ")
    assert told.startswith(f"{path}: "), why
    assert words in told, why


def test_a_script_is_one_argument_of_a_shell(write: Write) -> None:
    script = "x" * (SCRIPT_MAX + 1)
    assert "more than" in problem(write(f'{EXEC}{NIGHTLY}script = "{script}"'))
    assert config.load([write(f'{EXEC}{NIGHTLY}script = "{script[1:]}"')])


@pytest.mark.parametrize("name", ["a b", "a/b", "x" * 65, "ü"])
def test_a_schedules_name_can_stand_in_a_path(write: Write, name: str) -> None:
    told = problem(write(f'{EXEC}[schedules."{name}"]\nmind = "m"\ncron = "* * * * *"\nmessage = "x"'))
    assert "1 to 64 letters" in told


def test_without_a_schedule_croniter_is_not_imported(write: Write) -> None:
    program = (
        "import sys; from pathlib import Path; from hostguard.config import load as config;"
        " config.load([Path(sys.argv[1])]); print('croniter' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    for text, imported in ((EXEC, "False\n"), (EXEC + NIGHTLY + 'message = "x"', "True\n")):
        file = write(text)
        done = subprocess.run(
            [*command, file], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
        )
        assert done.stdout == imported

"""What minds need of the host: at a boot a mind without it is broken, at a reload the file is refused."""

import pwd
from dataclasses import replace

import pytest

from hostguard.config import load as config
from hostguard.config import on_host
from hostguard.core.errors import ConfigError
from hostguard.core.model import Config, Mind
from hostguard.core.units import HOLDER

TEXT = """
[minds.ada]
command = ["/bin/true"]
user = "root"
[minds.bob]
command = ["/bin/true"]
user = "no-such-user"
[channels."#all"]
minds = ["ada", "bob"]
[schedules.night]
mind = "ada"
cron = "0 3 * * *"
timezone = "Europe/Atlantis"
message = "x"
[schedules.script]
mind = "bob"
cron = "0 3 * * *"
script = "x"
"""


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "hostguard.toml"
    file.write_text(TEXT)
    return file


def test_at_a_boot_what_the_host_lacks_is_kept(file):
    found = config.load([file], at_boot=True)
    assert found.minds["bob"].broken == 'there is no user "no-such-user" on this host'
    assert found.minds["bob"].user == "no-such-user"
    assert (found.minds["ada"].broken, found.minds["ada"].uid) == ("", 0)
    assert found.schedules["night"].timezone == "Europe/Atlantis"
    assert found.schedules["script"].mind == "bob"


def test_a_mind_may_not_have_the_user_that_holds_slots(monkeypatch):
    entry = pwd.struct_passwd(("odd", "x", HOLDER, HOLDER, "", "/", "/bin/sh"))
    monkeypatch.setattr(on_host.pwd, "getpwnam", lambda name: entry)
    text = f'user "odd" has the number {HOLDER}, which is hostguard\'s own'
    assert on_host.with_user(Mind("m", ("/bin/true",), user="odd")).broken == text


def test_at_a_reload_it_is_refused_whole(file):
    with pytest.raises(ConfigError) as caught:
        config.load([file])
    assert len(caught.value.problems) == 2
    assert 'minds.bob.user: there is no user "no-such-user"' in caught.value.problems[1]
    assert 'found "Europe/Atlantis" (unknown on this host)' in caught.value.problems[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("cron", "corn"),
        ('user = "root"', 'user = ""'),
        ('"Europe/Atlantis"', "3"),
        ('"Europe/Atlantis"', '""'),
    ],
)
def test_at_a_boot_too_a_fault_of_the_file_is_refused(file, before, after):
    file.write_text(TEXT.replace(before, after, 1))
    with pytest.raises(ConfigError):
        config.load([file], at_boot=True)


def test_a_mind_is_broken_until_its_user_is_there():
    mind = on_host.with_user(Mind("m", ("/bin/true",), user="no-such-user", directory=""))
    assert mind.broken
    assert on_host.again(mind) == mind
    mended = on_host.again(replace(mind, user="root"))
    assert (mended.broken, mended.uid, mended.home, mended.directory) == ("", 0, "/root", "/root")


def test_a_mind_is_broken_until_its_program_is_there(tmp_path):
    program = tmp_path / "opt/turn"
    minds = {"m": Mind("m", (str(program), "-x")), "r": Mind("r", url="http://127.0.0.1:1")}
    found = on_host.with_programs(Config(minds=minds)).minds
    assert found["m"].broken == f'there is no program "{program}"'
    assert found["r"] == minds["r"]
    program.parent.mkdir()
    program.touch()
    assert on_host.again(found["m"]) == minds["m"]
    program.unlink()
    program.parent.rmdir()
    program.parent.touch()
    assert on_host.again(minds["m"]).broken, "below something that is no folder"

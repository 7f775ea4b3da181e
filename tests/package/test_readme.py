"""What the README says to type to install and use it, typed word for word on a fresh Debian; and autopkgtest."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from fresh import ROOT, Host


def section(title: str) -> str:
    """The text of a section of the README."""
    return (ROOT / "README.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(title: str) -> list[str]:
    """The commands that a section shows, each block of them."""
    return [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", section(title), re.MULTILINE)]


def test_without_leave_to_install_it_names_what_the_build_needs(host: Host) -> None:
    said = host.ask("/src/packaging/build-deb /tmp/none")
    control = (ROOT / "packaging/debian/control").read_text().partition("Build-Depends:\n")[2]
    needs = ["build-essential", *re.findall(r"^ ([^ ,]+)", control.partition("\nStandards")[0], re.MULTILINE)]
    assert said.text.strip() == f"build-deb: missing; --install-deps installs them: {' '.join(needs)}"
    assert said.status == 3


def test_the_readme_installs_it(host: Host) -> None:
    host.run("echo 'APT::Get::Assume-Yes yes;' >/etc/apt/apt.conf.d/yes")  # what a person answers
    (install,) = commands("Install it")
    assert "packaging/build-deb" in install
    host.run(f"set -e; cd /src\n{install}")
    assert host.run("systemctl is-active hostguard.service") == "active\n"
    assert host.run("hostguard status")


OWN = """useradd --create-home ada
install -D /dev/stdin /opt/ada/turn <<'END'
#!/bin/sh
if grep -q long; then sleep 300; fi
END
mkdir /run/own
ln -s /bin/true /run/own/make"""


def test_what_the_readme_configures_can_be_used_as_it_says(host: Host) -> None:
    (config,) = re.findall(r"^```toml\n(.*?)^```", section("Configure it"), re.MULTILINE | re.DOTALL)
    host.run(OWN)
    host.run(f"cat >/etc/hostguard/hostguard.toml <<'END'\n{config}END\nhostguard config check")
    host.run("systemctl reload hostguard")
    ours, systemds = commands("Use it")
    for line in ours.splitlines():
        host.run(f"cd /run; PATH=/run/own:$PATH; {line.replace('17', '1')}")
    row = host.run("hostguard send @ada long").split()[0]
    host.wait_for(f"systemctl is-active hostguard-turn-ada-{row}.scope")
    for line in systemds.splitlines():
        host.run(line.replace("17", row))
    host.wait_for(f"hostguard queue {row} | grep 'Outcome: stopped'")
    host.run("apt-get purge hostguard")


def test_autopkgtest_passes(host: Host, package: Path) -> None:
    host.run("apt-get install -y autopkgtest")
    # The guest is a machine of its own, which autopkgtest cannot know when it runs inside (newer ones assume not).
    ours = "--ignore-restrictions=isolation-machine"
    said = host.run(f"cd /packages && autopkgtest {ours} {package.name} hostguard_*.dsc -- null")
    assert re.search(r"^smoke +PASS$", said, re.MULTILINE), said

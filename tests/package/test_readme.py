"""What the README says to type to install hostguard, typed word for word on a fresh Debian; and autopkgtest."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from fresh import ROOT, Host


def section(title: str) -> str:
    """The commands that a section of the README shows."""
    text = (ROOT / "README.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    return "".join(map(textwrap.dedent, blocks))


def test_the_readme_installs_it(host: Host) -> None:
    host.run("echo 'APT::Get::Assume-Yes yes;' >/etc/apt/apt.conf.d/yes")  # what a person answers
    commands = section("Install it")
    assert "packaging/build-deb" in commands
    host.run(f"set -e; cd /src\n{commands}")
    assert host.run("systemctl is-active hostguard.service") == "active\n"
    assert host.run("hostguard status")
    host.run("apt-get purge hostguard")


def test_autopkgtest_passes(host: Host, package: Path) -> None:
    host.run("apt-get install -y autopkgtest")
    # The guest is a machine of its own, which autopkgtest cannot know when it runs inside (newer ones assume not).
    ours = "--ignore-restrictions=isolation-machine"
    said = host.run(f"cd /packages && autopkgtest {ours} {package.name} hostguard_*.dsc -- null")
    assert re.search(r"^smoke +PASS$", said, re.MULTILINE), said

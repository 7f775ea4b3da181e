"""The package's whole life on a fresh Debian: installed, used, upgraded under turns, removed, back, and purged.

The tests of this file go on from one another.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from fresh import Host, tool

CONFIG = """
[minds.ada]
command = ["/bin/sh", "-c", "echo went $(id -un); until [ -e /run/go ]; do sleep 0.1; done"]
user = "ada"
concurrent_turns = 3
"""
TURNS = "systemctl list-units --plain --no-legend 'hostguard-turn-*' | cut -d' ' -f1"


def test_apt_installs_it_and_it_runs_enabled_in_its_sandbox(host: Host, package: Path) -> None:
    host.run(f"cd /packages && apt-get install -y ./{package.name}")
    assert host.run("systemctl is-enabled hostguard.service hostguard.socket") == "enabled\nenabled\n"
    assert host.run("systemctl is-active hostguard.service hostguard.socket") == "active\nactive\n"
    assert "g:hostguard" not in host.run("getent group hostguard")
    socket = "stat -c '%A %U %G' /run/hostguard/hostguard.sock"
    assert host.run(socket) == "srw-rw---- root hostguard\n"

    said = host.run("systemd-analyze security --no-pager hostguard.service")
    found = re.search(r"Overall exposure level for hostguard.service: ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= 2.3
    status = host.run("cat /proc/$(systemctl show --value -p MainPID hostguard)/status")
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


def test_the_guard_s_unit_is_what_keeps_it_up_beside_busy_minds(host: Host) -> None:
    said = host.run(f"systemctl show --property={','.join(UNIT)} hostguard.service")
    assert dict(line.split("=", 1) for line in said.splitlines()) == UNIT
    assert host.run("systemctl show --value --property=IOWeight hostguard.slice") == "[not set]\n"


UNIT = {
    "Type": "notify", "WatchdogUSec": "1min", "Restart": "on-failure", "KillMode": "mixed",
    "OOMScoreAdjust": "-900", "MemoryMin": str(64 << 20), "IOWeight": "1000", "CPUWeight": "1000",
}  # fmt: skip


def test_systemd_finds_no_fault_in_the_units(host: Host) -> None:
    units = "hostguard.service hostguard.socket hostguard.slice hostguard-shutdown.service hostguard-mind@ada.service"
    timed = "hostguard-send@ada.service hostguard-send@ada.timer"
    assert host.run(f"cd /usr/lib/systemd/system && systemd-analyze verify --man=no {units} {timed}") == ""


def test_the_turns_are_stopped_after_the_guard_as_the_host_goes_down(host: Host) -> None:
    after = "systemctl show --value --property=After"
    assert "hostguard-shutdown.service" in host.run(f"{after} hostguard.service").split()
    shown = host.run(
        f"systemd-run --quiet --scope --unit=hostguard-turn-any-1 {after} hostguard-shutdown.service"
    )
    assert "hostguard-turn-any-1.scope" in shown.split()
    assert host.run("systemctl is-active hostguard-shutdown.service") == "active\n"


def test_every_option_of_the_configuration_is_there_and_commented_out(host: Host) -> None:
    left = host.run("grep -v '^#' /etc/hostguard/hostguard.toml | grep .")
    assert re.fullmatch(r"(\[[a-z]+\]\n)+", left), left
    host.run("hostguard config check")
    assert host.run("dpkg-query -Wf '${Conffiles}' hostguard").split()[0] == "/etc/hostguard/hostguard.toml"


def test_a_message_becomes_a_turn_and_the_status_line_shows_it(host: Host) -> None:
    host.run("useradd --create-home ada")
    host.run(f"cat >/etc/hostguard/hostguard.toml.d/ada.toml <<'END'{CONFIG}END\nsystemctl reload hostguard")
    host.run("hostguard send @ada hello")
    host.wait_for("systemctl status hostguard | grep 'Status: \"1 turn'")
    host.run("touch /run/go")
    host.wait_for("hostguard queue 1 | grep -i 'state: done'")
    assert "went ada" in host.run("journalctl --sync; hostguard logs 1")
    host.wait_for("systemctl status hostguard | grep 'Status: \"0 turns'")
    host.run("rm /run/go")


DROP_IN = """mkdir hostguard-send@ada.service.d
cat >hostguard-send@ada.service.d/text.conf <<'END'
[Service]
Environment="MESSAGE=it's $time"
END
systemctl daemon-reload"""


def test_a_timer_sends_as_a_user_of_the_group(host: Host) -> None:
    host.run(f"set -e; cd /etc/systemd/system; {DROP_IN}")
    host.run("systemctl enable --now hostguard-send@ada.timer")
    assert "hostguard-send@ada.timer" in host.run("systemctl list-timers")
    host.run("touch /run/go; systemctl start hostguard-send@ada.service")
    host.wait_for("hostguard queue 2 | grep -i 'state: done'")
    row = json.loads(host.run("hostguard queue 2 --json"))
    assert (row["mind"], row["payload"]["content"]) == ("ada", "it's $time")
    host.run("systemctl disable hostguard-send@ada.timer")  # it goes on until the package is removed
    host.run("rm -r /run/go /etc/systemd/system/hostguard-send@ada.service.d; systemctl daemon-reload")


def test_an_upgrade_ends_no_turn_and_loses_no_message(host: Host) -> None:
    host.run("for i in 1 2 3; do hostguard send @ada hello --session s$i; done")
    host.wait_for(f"[ $({TURNS} | wc -l) = 3 ]")
    shells = "head -qn 1 /sys/fs/cgroup/hostguard.slice/hostguard-ada.slice/*.scope/cgroup.procs"
    pid = "systemctl show --value -p MainPID hostguard"
    before, guard = (host.run(TURNS), host.run(shells)), host.run(pid)
    assert len(before[1].split()) == 3
    sending = (
        "(while [ ! -e /run/upgraded ]; do hostguard send @ada more --session more || exit; done; echo well)"
    )
    host.run(f"setsid -f sh -c '{sending} >/run/sent 2>&1'")
    host.run("apt-get install -y /packages/hostguard_9.9.9_all.deb; touch /run/upgraded")
    host.wait_for("tail -n 1 /run/sent | grep -x well")
    assert host.run("dpkg-query -Wf '${Version}' hostguard") == "9.9.9"
    assert host.run(pid) != guard
    assert (host.run(TURNS), host.run(shells)) == before
    host.wait_for("systemctl status hostguard | grep 'Status: \"3 turns'")
    sent = len(host.run("cat /run/sent").splitlines()) - 1
    waiting = json.loads(host.run("hostguard queue --json"))["deliveries"]
    assert len([row for row in waiting if row["session"] == "more"]) == sent > 0


def test_a_removal_leaves_turns_to_finish_and_the_state(host: Host) -> None:
    scopes = host.run(TURNS)
    pam = "grep -c hostguard /etc/pam.d/common-account"
    assert host.run(pam, check=False) == "0\n"  # it is for an administrator to enable
    host.run("pam-auth-update --enable hostguard")
    assert host.run(pam) == "1\n"
    assert host.ask(f"systemctl is-enabled {FRONT}").text == "disabled\ndisabled\n"
    host.run(f"set -e; {GUARDED_VOLUTE}; systemctl enable {FRONT}")
    host.run("apt-get remove -y hostguard")
    assert host.run("find /etc/systemd/system | grep -E 'front|volute'", check=False) == ""
    assert host.run(pam, check=False) == "0\n"
    assert (
        host.run(
            "ls /usr/share/polkit-1/rules.d/*hostguard* /usr/share/pam-configs/hostguard", check=False
        ).count("No such")
        == 2
    )
    assert host.ask("systemctl is-active hostguard.service hostguard.socket").text == "inactive\ninactive\n"
    assert host.run("ls /usr/lib/systemd/system/hostguard* 2>/dev/null", check=False) == ""
    assert host.run("systemctl list-units --failed --plain --no-legend") == ""
    assert host.run(TURNS) == scopes
    host.run("touch /run/go")
    host.wait_for(f'[ -z "$({TURNS})" ]')
    host.run("test -s /var/lib/hostguard/queue.db -a -s /etc/hostguard/hostguard.toml.d/ada.toml")


# What `hostguard volute guard` leaves there; this host has no nft.
FRONT = "hostguard-front.socket hostguard-volute.service"
GUARDED_VOLUTE = "cd /etc/systemd/system; mkdir volute.service.d; echo [Service] >volute.service.d/50-hostguard-volute.conf"


def test_installed_again_it_knows_how_the_turns_ended(host: Host, package: Path) -> None:
    host.run(f"apt-get install -y --allow-downgrades /packages/{package.name}")
    for row in (3, 4, 5):
        host.wait_for(f"hostguard queue {row} | grep -i 'state: done'")
    host.wait_for('[ -z "$(hostguard queue --json | grep \'"id"\')" ]', 120)


def test_a_purge_leaves_nothing(host: Host, tree: Path, package: Path) -> None:
    host.run("systemctl set-property hostguard.slice IOWeight=50")  # as hostguard setup has it
    host.run("apt-get purge -y hostguard")
    assert host.run("getent group hostguard", check=False) == ""
    assert host.run("systemctl list-units --all --plain --no-legend 'hostguard*'") == ""
    assert host.run("find /sys/fs/cgroup -name 'hostguard*'") == ""
    depends = [name.split()[0] for name in tool("dpkg-deb", "-f", package, "Depends").split(", ")]
    with Host(tree, {}) as other:
        other.run(f"apt-get install -y {' '.join(depends)}")
        other.run("useradd --create-home ada")
        files = "find / /run /tmp /var/tmp -xdev"
        left = set(host.run(files).splitlines()) - set(other.run(files).splitlines())
    left.discard("/var/lib/systemd/timers")  # systemd makes it for the first timer
    ours = {path for path in left if not path.startswith(NOISE) and not re.search(OTHERS_TMP, path)}
    assert ours == set()


def test_a_purge_empties_a_disk_of_the_states_own(host: Host, package: Path) -> None:
    host.run("mkdir /var/lib/hostguard && mount -t tmpfs tmpfs /var/lib/hostguard")
    host.run(f"apt-get install -y /packages/{package.name}")
    assert host.run("ls /var/lib/hostguard") != ""
    host.run("apt-get purge -y hostguard")
    assert host.run("ls -A /var/lib/hostguard") == ""


OTHERS_TMP = "/systemd-private-[0-9a-f]+-(?!hostguard)"
# Logs, what systemd and apt keep of every unit and package, and what the tests made.
NOISE = (
    "/var/log/", "/run/systemd/", "/run/log/", "/var/lib/dpkg/", "/var/cache/", "/proc/", "/run/go", "/run/sent",
    "/run/upgraded", "/packages", "/src",
)  # fmt: skip

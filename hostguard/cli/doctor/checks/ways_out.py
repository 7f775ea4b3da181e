"""Checks of the ways out of a turn: services that run programs for minds' users outside of turns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from hostguard.cli.doctor.checks import Check, Host, ok, problem, warning
from hostguard.config.users import CONTAINER_GROUPS, confined_by, end_of_linger, end_of_logins
from hostguard.core.model import Mind
from hostguard.linux.cgroup import has_login

OUT = "What a turn has run there is in no turn: it has no limits."
SSHD = ("/usr/sbin/sshd", "/usr/sbin/dropbear")
SSHD_DROP_INS = "/etc/ssh/sshd_config.d"
KEYS = (".ssh/authorized_keys", ".ssh/authorized_keys2")


def sandbox(host: Host) -> Check:
    """PAM keeps the users of strict minds from running anything outside of turns."""
    strict = {mind.user: mind for mind in host.config.minds.values() if mind.strict}
    if not strict or host.user:
        return ok("no mind has one")
    if not confined_by(host.text("/etc/pam.d/common-account")):
        why = 'sandbox = "strict" has no effect, and the minds\' messages wait.'
        mend = "pam-auth-update --enable hostguard"
        return problem(f"PAM does not confine {', '.join(strict)}", why, mend)
    inside = [user for user, mind in strict.items() if has_login(mind.uid, host.root)]
    if inside:
        why = "Their turns can have it run programs. From now on, PAM lets none begin."
        title = f"a login or a service manager is left: {', '.join(inside)}"
        return problem(title, why, *map(end_of_logins, inside))
    if host.exists(SSHD[0]) and not _asks_pam(host):
        why = "They can log in by ssh, and so leave their turns."
        mends = [f"echo 'UsePAM yes' >{SSHD_DROP_INS}/00-hostguard.conf", "systemctl reload ssh"]
        return problem(f"sshd does not ask PAM about {', '.join(strict)}", why, *mends)
    return ok(f"of {', '.join(strict)}")


def linger(host: Host) -> Check:
    """No mind's user has a service manager without being logged in."""
    found = [user for user in _open(host) if host.exists(f"/var/lib/systemd/linger/{user}")]
    if not found:
        return ok("no mind's user")
    mends = [f"{end_of_linger(user)}    # it ends what runs there" for user in found]
    return _way("that linger, so that systemd-run --user works without a login", found, mends)


def cron(host: Host) -> Check:
    """No mind's user may use cron or at."""
    found: dict[str, list[str]] = {}
    for user in _open(host):
        mends = [line for program in ("cron", "at") for line in _forbid(host, program, user)]
        if host.exists(f"/var/spool/cron/crontabs/{user}"):
            mends.append(f"crontab -r -u {user}    # it has one now: look first, with crontab -l -u {user}")
        if mends:
            found[user] = mends
    if not found:
        return ok("not for minds' users")
    return _way("that may use cron or at", [*found], [line for lines in found.values() for line in lines])


def containers(host: Host) -> Check:
    """No mind's user controls containers of root."""
    found: dict[str, list[str]] = {}
    for line in host.text("/etc/group").splitlines():
        name, _, gid, members = (line.split(":") + [""] * 4)[:4]
        if name in CONTAINER_GROUPS:
            for user, mind in _open(host).items():
                if user in members.split(",") or gid in map(str, (*mind.groups, mind.gid)):
                    found.setdefault(user, []).append(name)
    if not found:
        return ok("no mind's user controls any")
    mends = [f"gpasswd --delete {user} {name}" for user, names in found.items() for name in names]
    groups = sorted({name for names in found.values() for name in names})
    return _way(f"that control containers of root (groups: {', '.join(groups)})", [*found], mends)


def ssh_keys(host: Host) -> Check:
    """No mind's user can log in by ssh with a key."""
    found = {}
    for user, mind in _open(host).items() if any(map(host.exists, SSHD)) else ():
        files = [f"{mind.home}/{name}" for name in KEYS if _has_content(host, f"{mind.home}/{name}")]
        if files:
            found[user] = f"rm {' '.join(files)}    # DenyUsers in sshd_config(5) also refuses a new one"
    if not found:
        return ok("no mind's user has one")
    return _way("with ssh keys, by which a turn can log in to this host", [*found], [*found.values()])


def shared_users(host: Host) -> Check:
    """Each mind has a user of its own."""
    of_user: dict[int, list[Mind]] = {}
    for mind in host.config.minds.values():
        if mind.user and not host.user:
            of_user.setdefault(mind.uid, []).append(mind)
    found = [minds for minds in of_user.values() if len(minds) > 1]
    if not found:
        return ok("each mind has its own")
    return warning(
        "; ".join(f"{', '.join(mind.name for mind in minds)} all run as {minds[0].user}" for minds in found),
        "Minds of one user can read each other's files and control each other's processes.",
        "useradd --create-home NAME    # for each mind, then set it as user in hostguard.toml",
    )


def _asks_pam(host: Host) -> bool:
    """Whether sshd does. The first setting counts, and Debian's sshd_config(5) reads the drop-ins first."""
    drop_ins = sorted((host.root / SSHD_DROP_INS.lstrip("/")).glob("*.conf"))
    texts = [host.text(f"{SSHD_DROP_INS}/{file.name}") for file in drop_ins]
    settings = "\n".join([*texts, host.text("/etc/ssh/sshd_config")])
    found = re.search(r"^\s*UsePAM[\s=]+(\w+)", settings, re.MULTILINE | re.IGNORECASE)
    return found is not None and found[1].lower() == "yes"


def _open(host: Host) -> dict[str, Mind]:
    """The users whom no sandbox confines, each with one of its minds. root can do anything anyhow."""
    minds = [] if host.user else [mind for mind in host.config.minds.values() if mind.user and mind.uid]
    return {mind.user: mind for mind in minds if not mind.strict}


def _way(which: str, users: Sequence[str], mends: Sequence[str]) -> Check:
    strict = '# or, if nobody logs in as the user: sandbox = "strict", see hostguard.toml(5)'
    return warning(f"users of minds {which}: {', '.join(users)}", OUT, *mends, strict)


def _forbid(host: Host, program: str, user: str) -> Iterator[str]:
    """What keeps the user from crontab or at, see crontab(1) and at.allow(5); nothing if something does."""
    if not host.exists("/usr/bin/crontab" if program == "cron" else "/usr/bin/at"):
        return
    allow, deny = f"/etc/{program}.allow", f"/etc/{program}.deny"
    if host.exists(allow):
        if user in host.text(allow).split():
            yield f"sed -i '/^{user}$/d' {allow}"
    elif host.exists(deny):
        readable = os.access(host.root / deny.lstrip("/"), os.R_OK)
        if readable and user not in host.text(deny).split():
            yield f"echo {user} >>{deny}"
    elif program == "cron":  # without both files at is for root only
        yield f"echo {user} >>{deny}"


def _has_content(host: Host, path: str) -> bool:
    """Whether there is such a file and it is not empty. It belongs to a mind: it is not opened."""
    try:
        return (host.root / path.lstrip("/")).lstat().st_size > 0
    except OSError:
        return False

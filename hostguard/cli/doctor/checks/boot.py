"""How to change the kernel's command line on this host: where it is kept, and what to type."""

from __future__ import annotations

import re

from hostguard.cli.doctor.checks import Host

FIRMWARE = ("/boot/firmware/cmdline.txt", "/boot/cmdline.txt")  # Raspberry Pi OS since bookworm, and before
KERNEL_INSTALL = "/etc/kernel/cmdline"  # kernel-install(8), and proxmox-boot-tool on hosts with systemd-boot
GRUB, GRUB_DROP_IN = "/etc/default/grub", "/etc/default/grub.d/90-hostguard.cfg"


def add_option(host: Host, option: str) -> tuple[str, ...]:
    """The commands that add an option to the kernel's command line."""
    file, apply = _place(host)
    if file is None:
        return (f"# add {option} to the kernel's command line, then reboot",)
    given = _grub_words(host) if file == GRUB else host.text(file).split()
    if option in given:
        return (f"{apply}    # {option} is in {file} already",)
    if file == GRUB:
        # A drop-in, because the line in /etc/default/grub may be missing or quoted in any way.
        line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {option}"'
        return (f"mkdir -p /etc/default/grub.d; echo '{line}' >>{GRUB_DROP_IN}", apply)
    return (f"sed -i '1s/$/ {option}/' {file}    # it stays one line", apply)


def remove_options(host: Host, *options: str) -> tuple[str, ...]:
    """The commands that remove options from the kernel's command line."""
    file, apply = _place(host)
    files = [GRUB, *_grub_drop_ins(host)] if file == GRUB else [file] if file else []
    found = [file for file in files if {*options} & {*re.split(r"[\s'\"]+", host.text(file))}]
    if not found:
        return (f"# remove {' '.join(options)} from the kernel's command line, then reboot",)
    pattern = "; ".join(rf"s/\b{re.escape(option)}\b//" for option in options)
    return (f"sed -i '{pattern}' {' '.join(found)}", apply)


def _place(host: Host) -> tuple[str | None, str]:
    """The file with the options, None if it is not known, and the command that applies a change of it."""
    for file in FIRMWARE:
        if host.exists(file):
            return file, "reboot"
    by_grub = "BOOT_IMAGE=" in host.text("/proc/cmdline")  # GRUB adds this word, systemd-boot does not
    if host.exists(KERNEL_INSTALL) and not (by_grub and host.exists(GRUB)):
        if host.exists("/usr/sbin/proxmox-boot-tool"):
            return KERNEL_INSTALL, "proxmox-boot-tool refresh; reboot"
        install = 'kernel-install add "$(uname -r)" "/boot/vmlinuz-$(uname -r)"'
        return KERNEL_INSTALL, f"{install}; reboot"
    return (GRUB, "update-grub; reboot") if host.exists(GRUB) else (None, "")


def _grub_drop_ins(host: Host) -> list[str]:
    return [
        f"/etc/default/grub.d/{file.name}"
        for file in sorted((host.root / "etc/default/grub.d").glob("*.cfg"))
    ]


def _grub_words(host: Host) -> list[str]:
    """The words in the settings of GRUB for the kernel's command line."""
    text = "\n".join(host.text(file) for file in [GRUB, *_grub_drop_ins(host)])
    lines = re.findall(r"^\s*GRUB_CMDLINE_LINUX(?:_DEFAULT)?=(.*)$", text, re.MULTILINE)
    return [word for line in lines for word in re.split(r"[\s'\"]+", line)]

"""The entry point of hostguardd."""

from __future__ import annotations

import gc
import os
import sys

from hostguard import __version__

USAGE = """usage: hostguardd [--user | --version]
The daemon, configured in /etc/hostguard/hostguard.toml; with --user that of a user's own service manager."""


def main() -> None:
    """Run the guard, and exit; or answer what the command line asks."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"hostguardd {__version__}")
        return
    if arguments == ["--user"]:
        os.environ["HOSTGUARD_USER_MANAGER"] = "1"  # before anything imports the paths
    elif arguments:
        asked = arguments == ["--help"]
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    # The modules stay as long as the guard runs. Looking through them for garbage while they are made takes a
    # tenth of a start's CPU time, and later finds nothing.
    gc.disable()
    from hostguard.daemon import run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()

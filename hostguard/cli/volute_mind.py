"""What a Volute mind needs on this host to work under hostguard: its service and its variables. Pure.

Source: mimsy/volute, mind-manager.ts. Without VOLUTE_MIND a mind reports nothing. It looks for its token
under one of two names: VOLUTE_DAEMON_TOKEN, from version 0.41.1 VOLUTE_MIND_TOKEN. Both are set, so that it
works before and after an upgrade.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hostguard.core import paths
from hostguard.core.units import escape

COMMAND = "node_modules/.bin/tsx src/server.ts --port"
PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # as systemd's


@dataclass(frozen=True, slots=True)
class VoluteMind:
    """A mind, its directory, the user who runs it, its port, and that of the minds' endpoint.

    `node`: the folder of node, if it is not one of PATH.
    """

    name: str
    folder: Path
    user: str
    port: int
    daemon_port: int
    node: Path | None = None

    @property
    def unit(self) -> str:
        """The service that runs it."""
        return f"hostguard-mind@{escape(self.name)}.service"

    @property
    def variables_file(self) -> Path:
        """The file with its variables, which only root can read."""
        return paths.CONFIG.with_name("minds") / f"{escape(self.name)}.env"

    @property
    def unit_file(self) -> Path:
        """The drop-in for its service."""
        return paths.UNITS / f"{self.unit}.d" / "volute.conf"

    def variables(self, token: str) -> str:
        """The file of the variables; systemd reads it as root."""
        own = self.folder / "home/.local/bin"
        values = {
            "COMMAND": f"{COMMAND} {self.port}",
            "PATH": ":".join(map(str, (own, *([self.node] if self.node else []), *PATH))),
            "VOLUTE_MIND": self.name,
            "VOLUTE_MIND_DIR": self.folder,
            "VOLUTE_MIND_PORT": self.port,
            "VOLUTE_DAEMON_PORT": self.daemon_port,
            "VOLUTE_DAEMON_TOKEN": token,
            "VOLUTE_MIND_TOKEN": token,
        }
        head = "# Written by `hostguard mind add`. Add what the model needs, such as ANTHROPIC_API_KEY=..."
        return "\n".join([head, *(f"{name}={_quoted(str(value))}" for name, value in values.items()), ""])

    def service(self) -> str:
        """The drop-in for hostguard-mind@.service."""
        folder = str(self.folder).replace("%", "%%")
        lines = ["[Service]", f"User={self.user.replace('%', '%%')}", f"WorkingDirectory={folder}"]
        return "\n".join(["# Written by `hostguard mind add`.", *lines, ""])


def _quoted(value: str) -> str:
    """As systemd.exec(5) has a value in an EnvironmentFile."""
    escaped = "".join(f"\\{char}" if char in '"\\`$' else char for char in value)
    return f'"{escaped}"'

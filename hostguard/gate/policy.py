"""The caps, pauses and sleep in effect: the configuration, and the settings that override it at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hostguard.core.errors import unknown
from hostguard.core.model import Config, Mind
from hostguard.store.settings import LIMIT, PAUSE, RESTART, SLEEP, TOKEN, SettingsStore, on_host_or

LIMITS = ("global_concurrent_turns", "mind_concurrent_turns")
_DEFAULTS = Config()
CAP_MAX = 10_000  # far above what a host can run; catches a slip of the finger


def boot_id() -> str:
    """Identifies this boot of the host: what was set with --runtime ends with it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def known_mind(name: Any, config: Config) -> Mind:
    """The configured mind of that name. Raises Problem."""
    if not isinstance(name, str) or name not in config.minds:
        raise unknown("mind", name, f"minds: {', '.join(sorted(config.minds)) or 'none is configured'}")
    return config.minds[name]


class Policy:
    """Caps, pauses and sleep. `config` is the configuration in force, replaced at each reload."""

    def __init__(self, settings: SettingsStore, boot: str) -> None:
        self.config = Config()
        self.boot = boot
        self._settings = settings

    def paused(self, mind: str | None = None) -> bool:
        """True if the mind, or the guard, is paused."""
        return self._settings.get(PAUSE, on_host_or(mind)) is not None

    def paused_minds(self) -> list[str]:
        """Minds that are paused, known or not."""
        return list(self._settings.all(PAUSE, on_host_or("")))

    def asleep(self, mind: str) -> bool:
        """True if the mind sleeps."""
        sleep = self._settings.get(SLEEP, mind)
        return sleep is not None and sleep["since"] is not None

    def asleep_until(self, mind: str) -> int | None:
        """When a mind that sleeps or falls asleep wakes by itself, in ms; None: it does not."""
        sleep = self._settings.get(SLEEP, mind)
        return None if sleep is None else sleep["until"]

    def sleepy(self, mind: str) -> bool:
        """True if the mind sleeps or falls asleep, so that it needs waking."""
        return self._settings.get(SLEEP, mind) is not None

    def sleepy_minds(self) -> list[str]:
        """Minds that sleep or fall asleep, known or not."""
        return list(self._settings.all(SLEEP))

    def restarting(self, mind: str) -> bool:
        """True if the mind's service is to be restarted before its next turn."""
        return self._settings.get(RESTART, mind) is not None

    def token(self, mind: str) -> str | None:
        """SHA-256 of a mind's token, hex: from the configuration, else the one made at run time."""
        return self.config.minds[mind].token or self._settings.get(TOKEN, mind)

    def global_cap(self) -> int | None:
        """Turns of all minds together; None = unlimited."""
        return self.limit("global_concurrent_turns")[0]

    def mind_cap(self, mind: str) -> int:
        """Turns of one configured mind."""
        value = self.limit("mind_concurrent_turns", mind)[0]
        return CAP_MAX if value is None else value

    def limit(self, name: str, mind: str | None = None) -> tuple[int | None, str]:
        """(value, where it comes from: runtime, kept, config or default)."""
        override = self._settings.get(LIMIT, name + on_host_or(mind))
        if override is not None and override["boot"] in (None, self.boot):
            return override["value"], "runtime" if override["boot"] else "kept"
        if mind is not None:
            own = self.config.minds[mind].concurrent_turns if mind in self.config.minds else None
            return (own, "config") if own is not None else (self.limit(name)[0], "default")
        value: int | None = getattr(self.config, name)
        return value, "default" if value == getattr(_DEFAULTS, name) else "config"

    def has_limit(self, name: str, mind: str | None) -> bool:
        """True if the limit was set at run time."""
        return self._settings.get(LIMIT, name + on_host_or(mind)) is not None

    def limits(self) -> list[dict[str, Any]]:
        """Both limits of all minds, and those that one mind has of its own, also if it was removed since."""
        rows: list[tuple[str, str | None, int | None, str]] = [(n, None, *self.limit(n)) for n in LIMITS]
        kept = self._settings.all(LIMIT, f"mind_concurrent_turns{on_host_or('')}")
        for mind in dict.fromkeys((*self.config.minds, *kept)):
            value, source = self.limit("mind_concurrent_turns", mind)
            if source != "default":
                rows.append(("mind_concurrent_turns", mind, value, source))
        return [{"name": n, "mind": m, "value": v, "source": s} for n, m, v, s in rows]

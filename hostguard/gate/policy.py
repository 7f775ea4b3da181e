"""What is allowed now: the configuration, and over it what an operator set at run time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hostguard.core.model import Config

LIMITS = ("global_concurrent_turns", "mind_concurrent_turns")
_DEFAULTS = Config()
CAP_MAX = 10_000  # far above what a host can run; catches a slip of the finger


def boot_id() -> str:
    """Identifies this boot of the host: what was set with --runtime ends with it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pause_key(mind: str | None) -> str:
    """The setting that pauses a mind, or the guard."""
    return "pause" if mind is None else f"pause.mind.{mind}"


def limit_key(name: str, mind: str | None) -> str:
    """The setting that overrides a limit, of one mind or of all."""
    return f"limit.{name}" if mind is None else f"limit.{name}.mind.{mind}"


def sleep_key(mind: str) -> str:
    """The setting of a mind that sleeps: {"since": ms, "until": ms or null}.

    While it falls asleep `since` is null, and "row" the message that tells it so.
    """
    return f"sleep.mind.{mind}"


def woken_key(mind: str) -> str:
    """The setting of a mind that a message woke: it sleeps again when idle. True or {"until": ms or null}."""
    return f"woken.mind.{mind}"


class Policy:
    """Caps and pauses. Settings are as stored: a pause True, a limit {"value": ..., "boot": id or None}."""

    def __init__(self, config: Config, settings: Mapping[str, Any], boot: str) -> None:
        self.config = config
        self.boot = boot
        self._settings = dict(settings)

    def set(self, key: str, value: Any) -> None:
        """Set or, with None, forget a setting."""
        if value is None:
            self._settings.pop(key, None)
        else:
            self._settings[key] = value

    def paused(self, mind: str | None = None) -> bool:
        """Whether the mind, or the guard, is paused."""
        return pause_key(mind) in self._settings

    def paused_minds(self) -> list[str]:
        """Minds that are paused, known or not."""
        return list(self.named(pause_key("")))

    def asleep(self, mind: str) -> bool:
        """Whether the mind sleeps."""
        return (self._settings.get(sleep_key(mind)) or {}).get("since") is not None

    def sleepy(self, mind: str) -> bool:
        """Whether the mind sleeps or falls asleep: what is to wake it must."""
        return sleep_key(mind) in self._settings

    def setting(self, key: str) -> Any:
        """A setting as stored; None if it is not set."""
        return self._settings.get(key)

    def named(self, prefix: str) -> dict[str, Any]:
        """The settings whose names begin so, by the rest of their names."""
        found = {key.removeprefix(prefix): key for key in self._settings if key.startswith(prefix)}
        return {name: self._settings[key] for name, key in sorted(found.items())}

    def global_cap(self) -> int | None:
        """Turns of all minds together; None = unlimited."""
        value: int | None = self.limit("global_concurrent_turns")[0]
        return value

    def mind_cap(self, mind: str) -> int:
        """Turns of one configured mind."""
        value = self.limit("mind_concurrent_turns", mind)[0]
        return CAP_MAX if value is None else value

    def limit(self, name: str, mind: str | None = None) -> tuple[int | None, str]:
        """(value, where it comes from: runtime, kept, config or default)."""
        setting = self._override(limit_key(name, mind))
        if setting is not None:
            return setting["value"], "runtime" if setting["boot"] else "kept"
        if mind is not None:
            own = self.config.minds[mind].concurrent_turns
            return (own, "config") if own is not None else (self.limit(name)[0], "default")
        value: int | None = getattr(self.config, name)
        return value, "default" if value == getattr(_DEFAULTS, name) else "config"

    def limits(self) -> list[dict[str, Any]]:
        """Both limits of all minds, and those that one mind has of its own."""
        rows: list[tuple[str, str | None, int | None, str]] = [(n, None, *self.limit(n)) for n in LIMITS]
        for mind in self.config.minds:
            value, source = self.limit("mind_concurrent_turns", mind)
            if source != "default":
                rows.append(("mind_concurrent_turns", mind, value, source))
        return [{"name": n, "mind": m, "value": v, "source": s} for n, m, v, s in rows]

    def _override(self, key: str) -> dict[str, Any] | None:
        setting: dict[str, Any] | None = self._settings.get(key)
        return setting if setting is not None and setting["boot"] in (None, self.boot) else None

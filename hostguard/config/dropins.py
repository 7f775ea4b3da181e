"""Drop-ins that hostguard itself writes: checked with the whole configuration before they are there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hostguard.config import load as config
from hostguard.config.load import ConfigError
from hostguard.config.toml import KeyPath
from hostguard.core import paths


def place(name: str) -> Path:
    """The file of a drop-in, whose name goes without ".toml"."""
    return paths.DROP_INS[0] / f"{name}.toml"


def set_elsewhere(file: Path) -> dict[KeyPath, str]:
    """The keys that other files than this one set, and which file does. Raises ConfigError."""
    origin = config.load_with_origin().origin
    return {path: source for path, source in origin.items() if source != str(file)}


def write(file: Path, text: str, *, replace: bool) -> None:
    """Write a drop-in that fits with the rest of the configuration, or nothing at all.

    Raises ConfigError with all that would be wrong then, FileExistsError unless it may `replace`, OSError.
    """
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")  # hidden: no drop-in yet
    with suppress(FileNotFoundError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(fd, 0o644)  # whatever the umask
            os.fsync(fd)
        _check(file, new)
        if replace:
            os.replace(new, file)
        else:
            os.link(new, file)
    finally:
        with suppress(FileNotFoundError):
            new.unlink()


def _check(file: Path, new: Path) -> None:
    """Load the configuration with `new` in the place of `file`. Raises ConfigError, in which it is `file`."""
    known = config.host_files(paths.CONFIG, paths.DROP_INS)
    main = [one for one in known if one == paths.CONFIG]
    others = [one for one in known if one != paths.CONFIG and one.name != file.name]
    try:
        config.load([*main, *sorted([*others, new], key=lambda one: file.name if one == new else one.name)])
    except ConfigError as error:
        problems = [text.replace(str(new), str(file)) for text in error.problems]
        raise ConfigError(problems, error.sources) from None

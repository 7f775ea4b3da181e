"""Drop-ins that hostguard writes. Each is checked with the whole configuration before it is in place."""

from __future__ import annotations

import os
from pathlib import Path

from hostguard.config import load as config
from hostguard.config.toml import KeyPath
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.linux.files import written_beside


def place(name: str) -> Path:
    """The path of a drop-in; `name` is without ".toml"."""
    return paths.DROP_INS[0] / f"{name}.toml"


def set_elsewhere(file: Path) -> dict[KeyPath, str]:
    """The keys that other files set, each with its file. Raises ConfigError."""
    _, origin = config.load_with_origin()
    return {path: source for path, source in origin.items() if source != str(file)}


def write(file: Path, text: str, *, replace: bool) -> None:
    """Write a drop-in if the whole configuration is valid with it.

    Raises ConfigError with all problems, FileExistsError if it exists and `replace` is false, OSError.
    """
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with written_beside(file, text, 0o644, durable=True) as new:  # hidden: no drop-in yet
        _check(file, new)
        if replace:
            os.replace(new, file)
        else:
            os.link(new, file)


def _check(file: Path, new: Path) -> None:
    """Load the configuration with `new` in place of `file`. Raises ConfigError, which names `file`."""
    known = config.host_files(paths.CONFIG, paths.DROP_INS)
    main = [one for one in known if one == paths.CONFIG]
    others = [one for one in known if one != paths.CONFIG and one.name != file.name]
    try:
        config.load([*main, *sorted([*others, new], key=lambda one: file.name if one == new else one.name)])
    except ConfigError as error:
        problems = [text.replace(str(new), str(file)) for text in error.problems]
        raise ConfigError(problems, error.sources) from None

"""Small trees that look like a host's /proc, /sys and /etc."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def build(root: Path, files: Mapping[str, str | Path]) -> Path:
    """Make each file below `root` with its text; a Path is where a symbolic link points to. `root`."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_text(content)
    return root

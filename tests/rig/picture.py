"""Runs the demo on a card that stops, records the screen of `hostguard top` meanwhile, and writes it as SVG.

usage: picture.py FILE REPORT, in a guest. REPORT is what `hostguard report` writes once nothing waits.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.rig.screen import OnScreen

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 80, 24
STILL_S = 20.0  # how long the card stops; the screen is recorded in the middle
KEPT_S = 8.0
TITLE = "hostguard top: the card has stopped"
# Rich's SVG loads its font from the network; a local monospaced one is enough.
WEB_FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def svg(ansi: str) -> str:
    """The SVG of a screen."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard"
    )
    console.print(Text.from_ansi(ansi), overflow="crop", no_wrap=True)
    text = console.export_svg(title=TITLE, code_format=WEB_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="top")
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def main() -> None:
    hostguard = [
        "env",
        "HOSTGUARD_RUNTIME=/run/hostguard-quickstart/run",
        sys.executable,
        "-m",
        "hostguard",
    ]
    demo = [str(ROOT / "packaging/quickstart"), "--stop", f"{STILL_S:g}"]
    with subprocess.Popen(demo, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="")
            if line.startswith("stopped:"):
                break
        with OnScreen(*hostguard, "top", width=WIDTH, height=HEIGHT) as screen:
            screen.wait(r"^!! disk +stalled", 60)
            screen.watch(KEPT_S)
            kept = screen.screen.ansi
            screen.press("q")
            screen.ended()
        while json.loads(subprocess.check_output([*hostguard, "status", "--json"]))["held"]:
            time.sleep(1)
        subprocess.run([*hostguard, "report", "--since", "2m", "-o", sys.argv[2]], check=True)
        print(process.stdout.read(), end="")
    if process.returncode:
        sys.exit(process.returncode)
    Path(sys.argv[1]).write_text(svg(kept))


if __name__ == "__main__":
    main()

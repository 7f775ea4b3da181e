"""Makes a picture of a page. usage: photograph.py PAGE PICTURE, with Chromium on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.rig.browser import Browser

WIDTH, HEIGHT = 1000, 1500

if __name__ == "__main__":
    page, picture = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with Browser() as browser:
        browser.size(WIDTH, HEIGHT)
        browser.scheme("light")
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(page.as_uri())
        browser.picture(picture, whole=False)

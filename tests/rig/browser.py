"""A headless Chromium that a test drives by its DevTools protocol, over the pipe that it offers for that.

https://chromedevtools.github.io/devtools-protocol/: JSON messages, each ended by a NUL, on its descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

LONG_S = 60.0  # on a machine that is very busy
PHONE, DESKTOP = (390, 844), (1280, 900)


class Browser:
    """One page. `complaints` are the console's errors, `asked` the addresses that were requested."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._last = 0
        self._rest = b""
        self._loaded = False

    def __enter__(self) -> Browser:
        self._home = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = (
            f"exec 3<&{theirs_in} 4>&{theirs_out}; exec chromium --headless --no-sandbox --disable-gpu"
            " --disable-dev-shm-usage --no-first-run --disable-background-networking"
            ' --disable-component-update --remote-debugging-pipe --user-data-dir="$0" about:blank'
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, self._home.name],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._home.name}, start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        found = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired, AssertionError):
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._home.cleanup()

    # -- the protocol

    def call(self, method: str, **params: Any) -> Any:
        """The result of a command."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _message(self) -> Any:
        until = time.monotonic() + LONG_S
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], max(0, until - time.monotonic()))[0], (
                "chromium is silent"
            )
            part = os.read(self._in, 1 << 20)
            assert part, "chromium ended"
            self._rest += part
        raw, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(raw)
        self._note(message.get("method"), message.get("params"))
        return message

    def _note(self, method: str | None, params: Any) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    # -- what a person does

    def open(self, url: str) -> float:
        """Go there; the ms from the start of the navigation to the end of its load event."""
        self._loaded = False
        found = self.call("Page.navigate", url=url)
        assert "errorText" not in found, found
        while not self._loaded:
            self._message()
        span: float = self.js("performance.getEntriesByType('navigation')[0].domComplete")
        return span

    def js(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
        )  # fmt: skip
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The expression's value, once it is true."""
        until = time.monotonic() + LONG_S
        while not (value := self.js(expression)):
            assert time.monotonic() < until, expression
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a mouse does."""
        box = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', inline: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1
            )  # fmt: skip

    def press(self, key: str) -> None:
        """Press a key: Tab, Enter, or a character."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        told = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        text = {"text": "\r" if key == "Enter" else key} if key != "Tab" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **told, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def size(self, width: int, height: int) -> None:
        """Be a screen of so many CSS pixels; a narrow one is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip

    def scheme(self, name: str, media: str = "") -> None:
        """Prefer "light" or "dark"; `media`: "print"."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def picture(self, file: Path, *, whole: bool = True, width: int = 0, height: int = 0) -> None:
        """Write a PNG of the page: all of it, or its top, `width` times `height`."""
        more: dict[str, Any] = {"captureBeyondViewport": whole}
        if width:
            more["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.call("Page.captureScreenshot", format=file.suffix[1:], **more)
        file.write_bytes(base64.b64decode(found["data"]))

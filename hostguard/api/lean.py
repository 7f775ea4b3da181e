"""uvicorn without those of its imports that the guard never uses: they took a tenth of the daemon's start.

Left out are its command line, the colours and the configuration of its log, and websockets: of these it would
import a library to tell a client that there are none, at a handshake and so on the event loop.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

FOR_ITSELF = {
    "uvicorn.main": {"main": None, "run": None, "Server": None},
    "uvicorn.protocols.websockets.auto": {"AutoWebSocketsProtocol": None},
}
# Stands in while uvicorn is imported: others may want the real ones.
FOR_ALL: dict[str, dict[str, Any]] = {"click": {"style": lambda text, **_how: text}, "logging.config": {}}


def _stand_in(name: str, has: dict[str, Any]) -> None:
    module = ModuleType(name)
    vars(module).update(has)
    sys.modules[name] = module


_missing = {name: has for name, has in FOR_ALL.items() if name not in sys.modules}
for _name, _has in (FOR_ITSELF | _missing).items():
    _stand_in(_name, _has)

from uvicorn.config import Config as Config  # noqa: E402
from uvicorn.protocols.http.h11_impl import H11Protocol as H11Protocol  # noqa: E402
from uvicorn.server import Server as Server  # noqa: E402

for _name in _missing:
    del sys.modules[_name]

"""The guard in front of Volute's daemon (rig/volute.py stands in for it), with nftables as the product has them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import nft
import psutil
import volute
from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S, GuardedHost
from minds import reload_if_needed

HOME = Path("/var/lib/volute-rig")
USER = "daemon"  # whose Volute is
PORT = 1618
UNIT = Path("/run/systemd/system/volute.service")
TEXT = f"""[Service]
User={USER}
Delegate=yes
KillMode=mixed
ExecStart={sys.executable} -S {volute.__file__} {HOME} {PORT}
"""


class FrontHost(GuardedHost):
    """A context manager. `start` starts Volute with these minds, and the guard in front of it."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard)
        self.ports: dict[str, int] = {}

    def __enter__(self) -> FrontHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.guard.pid and kind is None:
                wait_for(lambda: not self.turns(), LONG_S)
        finally:
            self.api.close()
            systemctl("stop", UNIT.name)
            nft.unload()
            shutil.rmtree(HOME, ignore_errors=True)

    def start(self, *minds: str, work: float = 0.1, rest: str = "", **limits: int) -> None:
        HOME.mkdir()
        shutil.chown(HOME, USER)
        UNIT.parent.mkdir(parents=True, exist_ok=True)
        UNIT.write_text(TEXT)
        reload_if_needed(UNIT)
        systemctl("start", UNIT.name)
        wait_for(self.answers)
        for name in minds:
            self.add(name, work=work)
        nft.load()
        lines = "".join(f"{name} = {value}\n" for name, value in limits.items())
        self.guard.start(f'[limits]\n{lines}\n[volute]\nhome = "{HOME}"\n{rest}')
        for name in minds:
            self.volute("start", name=name)

    # -- Volute

    def answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{PORT}/", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def volute(self, what: str, **body: Any) -> Any:
        """Command Volute; its answer."""
        answer = httpx.post(f"http://127.0.0.1:{PORT}/rig/{what}", json=body, timeout=150, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def add(self, name: str, work: float = 0.1) -> int:
        port = self.ports[name] = nft.FIRST + len(self.ports)
        self.volute("add", name=name, port=port, work=work)
        return port

    def tell(self, name: str, content: str, **fields: Any) -> Any:
        """A message of Volute to a mind; how it was answered."""
        return self.volute("send", name=name, content=content, **fields)

    def log(self, name: str, *whats: str) -> list[dict[str, Any]]:
        """What the mind wrote, of these kinds or all, in order."""
        lines = [json.loads(line) for line in (HOME / f"{name}.log").read_text().splitlines()]
        return [line for line in lines if not whats or line["what"] in whats]

    def contents(self, name: str) -> list[str]:
        """What the mind was sent, in order."""
        return [line["content"] for line in self.log(name, "message")]

    def why(self, row: int) -> str | None:
        """The reason for which a row is held."""
        hold = self.row(row).get("hold")
        return hold and str(hold["reason"])

    def child(self, name: str) -> str:
        """The unit in which the process is that works for the mind; "" if there is none."""
        pids = run("systemctl", "show", "--value", "--property=MainPID", UNIT.name).stdout.split()
        minds = psutil.Process(int(pids[0])).children()
        mind = next((one for one in minds if f"--name={name}" in one.cmdline()), None)
        workers = mind.children() if mind is not None else []
        if not workers:
            return ""
        return Path(f"/proc/{workers[0].pid}/cgroup").read_text().strip().rpartition("/")[2]

"""The minds' endpoint on a real socket, and what it passes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import httpx
from minds import free_port
from onqueue import policy

from hostguard.api import volute
from hostguard.api.http import Budget
from hostguard.core.model import Channel, Config, Mind
from hostguard.store.settings import TOKEN
from hostguard.systemd.notify import Notifier

TOKENS = {name: f"token-of-{name}" for name in ("ann", "bob", "a", "a:b", "a%3Ab")}


class Heard:
    """What the endpoint passes on, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.types: list[str] = []  # of the events that were heard
        self.ended: list[Any] = []
        self.stall: asyncio.Event | None = None

    def heard(self, mind: str, session: str | None, type_: str = "") -> None:
        self.types.append(type_)
        self.calls.append(("heard", mind, session))

    def done(self, mind: str, session: str | None, message_id: str | None, turn: str | None) -> list[Any]:
        self.calls.append(("done", mind, session, message_id, turn))
        return self.ended

    async def stored(self, ended: list[Any]) -> None:
        self.calls += [("stored",)] * bool(ended)
        if self.stall is not None:
            await self.stall.wait()


class Accepting:
    """Takes every message, or raises."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.problem: Exception | None = None

    async def send(self, message: Any) -> Any:
        if self.problem is not None:
            raise self.problem
        self.messages.append(message)
        return SimpleNamespace(rows=[SimpleNamespace(id=7)])


class Restarting:
    """Notes which minds ask for a restart, and what they are told afterwards."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def restart(self, mind: str, text: str) -> None:
        self.asked.append((mind, text))


class Host:
    def __init__(
        self, client: httpx.AsyncClient, port: int, endpoint: volute.Endpoint, config: Config
    ) -> None:
        self.client, self.port, self.endpoint, self.config = client, port, endpoint, config
        self.heard, self.accepting, self.restarting = Heard(), Accepting(), Restarting()

    async def post(
        self, path: str, body: Any, token: str | None = TOKENS["ann"], api: str = "api", **headers: str
    ) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(f"/{api}/minds/{path}", content=content, headers=given)

    async def event(
        self, body: Any, token: str | None = TOKENS["ann"], name: str = "ann", **headers: str
    ) -> int:
        return (await self.post(f"{name}/events", body, token, **headers)).status_code


def on_host(work: Callable[[Host], Awaitable[None]], payload_max: int = 1 << 20) -> None:
    """Run `work` with an endpoint of two minds: ann's token is in the configuration, bob's is kept."""

    async def main() -> None:
        port = free_port()
        config = Config(
            payload_max=payload_max,
            minds={
                "ann": Mind("ann", url="http://127.0.0.1:1", token=volute.token_hash(TOKENS["ann"])),
                "bob": Mind("bob", url="http://127.0.0.1:2"),
                "new": Mind("new", url="http://127.0.0.1:3"),
                **{name: Mind(name, token=volute.token_hash(TOKENS[name])) for name in ("a", "a:b", "a%3Ab")},
            },
            channels={"#all": Channel("#all", ("ann", "bob"))},
            events_listen=("127.0.0.1", port),
        )
        heard, accepting, restarting, notifier = Heard(), Accepting(), Restarting(), Notifier()
        asked: Any = policy(config, TOKEN.to("bob", volute.token_hash(TOKENS["bob"])))
        played: Any = (asked, heard, heard, accepting, restarting)
        endpoint = volute.Endpoint(*played, notifier, Budget())
        await endpoint.start(config.events_listen)
        try:
            base = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, timeout=10, trust_env=False) as client:
                host = Host(client, port, endpoint, config)
                host.heard, host.accepting, host.restarting = heard, accepting, restarting
                await asyncio.wait_for(work(host), 60)
        finally:
            await endpoint.close()
            notifier._socket.close()

    asyncio.run(main())

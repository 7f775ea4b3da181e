"""Route files of minds whose user runs the test, and whose changes can be awaited."""

import asyncio
import json
import os

from hostguard.core.model import Config, Mind
from hostguard.core.signals import RoutesChanged, RoutesRead, Signal
from hostguard.delivery.route_files import RouteFiles
from hostguard.delivery.routes import Routes

QUIET_S = 0.3  # for a change that is not to come: several times SETTLE_S
SOON_S = 5.0


def config(**paths):
    who = {"uid": os.getuid(), "gid": os.getgid(), "groups": tuple(os.getgroups())}
    return Config(minds={name: Mind(name, routes=str(path), **who) for name, path in paths.items()})


def routes(default):
    return json.dumps({"default": default})


class Watched:
    """Route files whose changes can be awaited. Its configuration is the policy."""

    def __init__(self, reader):
        self.told, self.read = asyncio.Queue(), []
        changed, read = Signal[RoutesChanged](), Signal[RoutesRead]()
        changed.subscribe(lambda fact: self.told.put_nowait(fact.mind))
        read.subscribe(lambda fact: self.read.append(fact.mind))
        self.config = Config()
        self.files = RouteFiles(self, reader, changed, read)

    async def reload(self, config):
        self.config = config
        self.files.reload()
        await self.files.loaded()

    def default(self, mind="bob"):
        found = self.files.get(mind)
        return found.default if isinstance(found, Routes) else None

    async def change(self):
        return await asyncio.wait_for(self.told.get(), SOON_S)

    async def quiet(self):
        await asyncio.sleep(QUIET_S)
        assert self.told.empty()

"""How the answers of a reader of routes are taken; no file is read."""

import asyncio
import errno
import os
import time
from dataclasses import replace

import pytest
from watched import Watched, config, routes

from hostguard.delivery import route_files
from hostguard.systemd.file_reader import Seen


class Answers:
    """A reader that answers what the test says; its fork server is not asked."""

    def __init__(self, *answers):
        self.answers, self.asked = [*answers], 0

    async def look(self, mind, path, most, stamp, watch):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, asyncio.Future):
            await answer
        return answer, watch

    def close(self):
        pass


def answered(work, *answers):
    async def main():
        reader = Answers(*answers)
        watched = Watched(reader)
        await watched.reload(config(bob="/r"))
        await work(watched, reader)
        await watched.files.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "said"),
    [(errno.ENOSPC, "there are too many watches: raise fs.inotify.max_user_watches"),
     (errno.EMFILE, "its user has too many: raise fs.inotify.max_user_instances"),
     (errno.EACCES, "/x cannot be watched: Permission denied")],
)  # fmt: skip
def test_a_file_that_cannot_be_watched_is_read_at_a_reload(caplog, error, said):
    blind = OSError(error, os.strerror(error), "/x")

    async def work(watched, reader):
        assert watched.default() == "one"
        await watched.reload(watched.config)
        assert watched.default() == "two"
        await watched.reload(watched.config)
        assert caplog.text.count(f"/r: changes take effect only at a reload: {said}") == 1

    seen = [Seen(frozenset(), blind, (n,), routes(text).encode()) for n, text in enumerate(("one", "two"))]
    answered(work, *seen, replace(seen[1], raw=None))


def test_a_fault_that_may_pass_is_tried_again_after_longer_and_longer_pauses(monkeypatch, caplog):
    monkeypatch.setattr(route_files, "AGAIN_S", 0.01)
    monkeypatch.setattr(route_files, "AGAIN_MAX_S", 0.02)

    async def work(watched, reader):
        assert watched.files.unread("bob") == "/r: no answer"
        assert await watched.change() == "bob"
        assert (watched.default(), reader.asked) == ("one", 4)
        await watched.quiet()
        assert reader.asked == 4, "nothing is read while nothing changes"
        assert caplog.text.count("no answer") == 1

    seen = Seen(frozenset(), None, (1,), routes("one").encode())
    answered(work, *[Seen(fault="no answer", passing=True)] * 3, seen)


def test_a_file_that_does_not_answer_delays_neither_a_start_nor_a_stop(monkeypatch):
    monkeypatch.setattr(route_files, "LOAD_S", 0.05)

    async def main():
        reader = Answers(asyncio.get_running_loop().create_future())
        watched = Watched(reader)
        begun = time.monotonic()
        await watched.reload(config(bob="/r"))
        assert watched.files.unread("bob") == "/r is being read"
        await watched.files.close()
        assert time.monotonic() - begun < 1
        assert reader.asked == 1

    asyncio.run(main())


def test_a_mind_whose_user_is_missing_is_not_read_for(monkeypatch):
    monkeypatch.setattr(route_files, "AGAIN_S", 0.01)

    async def main():
        reader = Answers(Seen(frozenset(), None, (1,), routes("one").encode()))
        watched = Watched(reader)
        whole = config(bob="/r")
        await watched.reload(replace(whole, minds={"bob": replace(whole.minds["bob"], broken="no user")}))
        assert (watched.files.unread("bob"), reader.asked) == ("/r: cannot be read: no user", 0)
        watched.config = whole  # it was mended meanwhile
        assert await watched.change() == "bob"
        await watched.files.close()

    asyncio.run(main())

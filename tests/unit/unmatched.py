"""Messages that no rule matches, and how they are stored."""

import json

from hostguard import deliveries
from hostguard.deliveries import New
from hostguard.gated import gate
from hostguard.model import State, Target
from hostguard.routing import parse_routes

NOTHING_MATCHES = parse_routes("{}")
ALL = parse_routes('{"rules": [{}]}')


def kept(*minds, channel="#x", sender="ann", content="hello"):
    """A message that is gated for its minds."""
    body = json.dumps({"content": content, "channel": channel, "sender": sender}).encode()
    targets = [Target(mind, "main", State.GATED) for mind in minds or ("bob",)]
    return New(targets, body, 1000, sender=sender, channel=channel)


def store(new):
    """As the acceptor does: the rows and what gating them brings, in one transaction."""

    def both(db):
        fresh = deliveries.enqueue(db, new)[1]
        return fresh, gate(db, fresh, new.payload, 1000)

    return both

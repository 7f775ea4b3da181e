"""Messages that no rule matches, and how they are stored."""

import json

from hostguard.core.model import State, Target
from hostguard.delivery.quarantine_rows import quarantine
from hostguard.delivery.routes import parse_routes
from hostguard.store import deliveries
from hostguard.store.deliveries import New

NOTHING_MATCHES = parse_routes("{}")
ALL = parse_routes('{"rules": [{}]}')


def unmatched(*minds, channel="#x", sender="ann", content="hello"):
    """A message that no route of its minds matches."""
    body = json.dumps({"content": content, "channel": channel, "sender": sender}).encode()
    targets = [Target(mind, "main", State.QUARANTINED) for mind in minds or ("bob",)]
    return New(targets, body, 1000, sender=sender, channel=channel)


def store(new):
    """As the acceptor does: the rows and what quarantine brings, in one transaction."""

    def both(db):
        fresh = deliveries.enqueue(db, new)[1]
        return fresh, quarantine(db, fresh, new.payload, 1000)

    return both

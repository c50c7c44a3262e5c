"""A proxy that injects faults between clients and a real Kafka cluster, by request: see docs/testing.md.

with WireProxy("127.0.0.1:9092", [Rule(Drop(acted=True), api="EndTxn", nth=1)]) as proxy:
    config = {"bootstrap.servers": proxy.bootstrap_servers, ...}

It reads Kafka's protocol, so it knows each request's API, version and client, and works with any client. It needs kio:
``pip install penstock-streams[testing]``.
"""

from __future__ import annotations

from .actions import Blackhole, Delay, Dribble, Drop, Fail, Hold, Reset
from .exchange import Action, Direction, Exchange
from .framing import WireError
from .plan import Plan
from .proxy import WireProxy
from .record import Event
from .rules import Rule

__all__ = [
    "Action",
    "Blackhole",
    "Delay",
    "Direction",
    "Dribble",
    "Drop",
    "Event",
    "Exchange",
    "Fail",
    "Hold",
    "Plan",
    "Reset",
    "Rule",
    "WireError",
    "WireProxy",
]

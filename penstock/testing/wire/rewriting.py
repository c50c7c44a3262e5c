"""Brokers' addresses in answers, which become the proxy's own: otherwise clients would go past it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from .framing import Request
from .messages import answer_type, decode_answer, encode_answer

#: The field of each API's answer that lists brokers; FindCoordinator below version 4 is a broker itself. The last four
#: name new leaders (KIP-951).
BROKERS = {
    "Metadata": "brokers",
    "DescribeCluster": "brokers",
    "FindCoordinator": "coordinators",
    "Produce": "node_endpoints",
    "Fetch": "node_endpoints",
    "ShareFetch": "node_endpoints",
    "ShareAcknowledge": "node_endpoints",
}

#: place(node, host, port) returns where clients reach the broker instead.
Place = Callable[[int, str, int], Awaitable[tuple[str, int]]]


async def rewrite(request: Request, answer: bytes, place: Place) -> bytes:
    """Return an answer with the addresses that place gives; one that names no broker is returned as it is."""
    name = BROKERS.get(request.api)
    if name is None:
        return answer
    known = answer_type(request).__dataclass_fields__
    if name in known:
        decoded = decode_answer(request, answer)
        brokers = getattr(decoded, name)
        moved = tuple([await _moved(broker, place) for broker in brokers])
        return encode_answer(request, replace(decoded, **{name: moved})) if moved != brokers else answer
    if "host" in known:
        return encode_answer(request, await _moved(decode_answer(request, answer), place))
    return answer


async def _moved(broker: Any, place: Place) -> Any:
    if not broker.host:  # a coordinator that is not there
        return broker
    node = broker.broker_id if hasattr(broker, "broker_id") else broker.node_id
    host, port = await place(node, broker.host, broker.port)
    return replace(broker, host=host, port=port)

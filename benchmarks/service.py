"""The service that benchmarks/waiting.py calls: ``GET /<number>`` returns its double, after a while.

$SERVICE_MODE selects the behavior: see MODES. It is an ASGI application without a framework, because the callers are
measured.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mode:
    """seconds: the range of response times; failing: the share of responses with status 503."""

    seconds: tuple[float, float] = (0.02, 0.02)
    failing: float = 0.0


MODES = {
    "steady": Mode(),
    "spread": Mode((0.005, 0.5)),
    "failing": Mode(failing=0.1),
}
MODE = MODES[os.environ.get("SERVICE_MODE", "steady")]
HEADERS = [(b"content-type", b"application/json")]


async def app(scope: dict[str, Any], _receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Respond to one request."""
    await asyncio.sleep(random.uniform(*MODE.seconds))
    fails = random.random() < MODE.failing
    body = b'{"double":%d}' % (2 * int(scope["path"][1:]))
    headers = [*HEADERS, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 503 if fails else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

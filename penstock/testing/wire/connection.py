"""The pumps of one connection: requests to the broker, answers to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from .exchange import Action, Exchange, Line
from .framing import Request, WireError, correlation_id, parse_request, read_frame
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


class Connection:
    """Pumps frames until one side ends.

    choose(request) gives what befalls an exchange, place(node, host, port) the proxy's address for a broker's.
    """

    def __init__(self, line: Line, choose: Callable[[Request], Action], place: Place) -> None:
        self._line = line
        self._choose = choose
        self._place = place

    async def serve(self) -> None:
        """Run until the end of either side; raises WireError for what is not Kafka's protocol."""
        sides = self._line.client, self._line.upstream
        try:
            await self._pump()
            for side in sides:
                await side.close()
        except BaseException:
            for side in sides:
                side.abort()
            raise

    async def _pump(self) -> None:
        pumps = [asyncio.create_task(pump) for pump in (self._requests(), self._answers())]
        receiver = asyncio.create_task(self._receive())
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*pumps, receiver):
                task.cancel()
            outcomes = await asyncio.gather(*pumps, receiver, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, EOFError | OSError):
                raise outcome

    async def _requests(self) -> None:
        while True:
            request = parse_request(await read_frame(self._line.client.reader))
            action = self._choose(request)
            await action.on_request(Exchange(self._line, request, action))

    async def _receive(self) -> None:
        """Read on while an answer is held back, so that the broker's end is noticed."""
        try:
            while True:
                await self._line.arrivals.put(await read_frame(self._line.upstream.reader))
        except (EOFError, OSError, WireError) as error:
            await self._line.arrivals.put(None)
            if isinstance(error, WireError):
                raise

    async def _answers(self) -> None:
        """Give answers in the order of the requests; brokers answer in that order."""
        under_way = self._line.under_way
        while (answer := await self._line.arrivals.get()) is not None:
            if answer:
                await self._take(answer)
            while under_way and under_way[0].answer:
                exchange = under_way.popleft()
                await exchange.action.on_answer(exchange, exchange.answer)

    async def _take(self, answer: bytes) -> None:
        waiting = next((exchange for exchange in self._line.under_way if not exchange.answer), None)
        if waiting is None or waiting.request.correlation_id != correlation_id(answer):
            raise WireError(f"an answer to no request; the first that waits: {waiting and waiting.request}")
        waiting.take(await rewrite(waiting.request, answer, self._place))


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

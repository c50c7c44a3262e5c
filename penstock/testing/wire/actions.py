"""Actions on a request and its response.

An action takes over one exchange: it decides when, in how many pieces and whether at all each direction passes. All
durations are in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from typing_extensions import override

from . import refusals
from .exchange import Action, Direction, Exchange

#: How long to wait for the response to a request whose client is gone.
_LATE_ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class _Passage(Action):
    """Changes how one direction's frame passes."""

    direction: Direction

    @override
    async def on_request(self, exchange: Exchange) -> None:
        await self._choose(Direction.REQUEST, exchange, exchange.forward)

    @override
    async def on_answer(self, exchange: Exchange, answer: bytes) -> None:
        await self._choose(Direction.ANSWER, exchange, lambda: exchange.give(answer))

    async def _choose(self, direction: Direction, exchange: Exchange, send: Callable[[], Awaitable[None]]) -> None:
        await (self._pass(exchange, send) if direction is self.direction else send())

    async def _pass(self, exchange: Exchange, send: Callable[[], Awaitable[None]]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Delay(_Passage):
    """Passes after this number of seconds, and delays everything after it on the connection."""

    seconds: float

    @override
    async def _pass(self, exchange: Exchange, send: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self.seconds)
        await send()


@dataclass(frozen=True)
class Dribble(_Passage):
    """Passes in this number of pieces, spread over this number of seconds."""

    pieces: int
    seconds: float

    @override
    async def _pass(self, exchange: Exchange, send: Callable[[], Awaitable[None]]) -> None:
        frame = exchange.frame(self.direction)
        size = -(-len(frame) // self.pieces)
        for start in range(0, len(frame), size):
            await exchange.write(self.direction, frame[start : start + size])
            await asyncio.sleep(self.seconds / self.pieces)


@dataclass(frozen=True)
class Reset(_Passage):
    """Half of the frame passes, then the connection is reset on both sides (RST)."""

    @override
    async def _pass(self, exchange: Exchange, send: Callable[[], Awaitable[None]]) -> None:
        frame = exchange.frame(self.direction)
        await exchange.write(self.direction, frame[: len(frame) // 2])
        exchange.close(reset=True)


@dataclass(frozen=True)
class Blackhole(_Passage):
    """From this frame on the connection is silent in one direction, without being closed: a half-open connection."""

    @override
    async def _pass(self, exchange: Exchange, send: Callable[[], Awaitable[None]]) -> None:
        exchange.silence(self.direction)


@dataclass(frozen=True)
class Drop(Action):
    """Closes the connection: before the broker has seen the request, or after it has acted and responded."""

    acted: bool

    @override
    async def on_request(self, exchange: Exchange) -> None:
        if not self.acted:
            exchange.close()
        await exchange.forward()

    @override
    async def on_answer(self, exchange: Exchange, answer: bytes) -> None:
        exchange.close()


@dataclass(frozen=True)
class Fail(Action):
    """Responds with one of Kafka's errors, e.g. "NOT_COORDINATOR".

    Requests that change something do not reach the broker. Read-only requests do, and the error codes of the response
    are replaced. Raises WireError if there is no such error.
    """

    error: str

    def __post_init__(self) -> None:
        refusals.error_of(self.error)

    @override
    async def on_request(self, exchange: Exchange) -> None:
        if refusals.reaches_broker(exchange.request):
            await exchange.forward()
        else:
            await exchange.refuse(refusals.refusal(exchange.request, refusals.error_of(self.error)))

    @override
    async def on_answer(self, exchange: Exchange, answer: bytes) -> None:
        if refusals.reaches_broker(exchange.request):
            answer = refusals.with_error(exchange.request, answer, refusals.error_of(self.error))
        await exchange.give(answer)


@dataclass(frozen=True)
class Hold(Action):
    """Holds a request until the nth later response of another API on any connection, or until seconds have passed.

    drop: closes the client's connection meanwhile, so that the client resends the request, which overtakes this one.
    In this way a network can deliver an old EndTxn into the next transaction (KIP-890).
    """

    until: str
    nth: int = 1
    drop: bool = False
    seconds: float = 60.0

    @override
    async def on_request(self, exchange: Exchange) -> None:
        passed = exchange.passing(self.until, self.nth)
        if self.drop:
            exchange.leave_client()
        with suppress(TimeoutError):
            await asyncio.wait_for(passed, self.seconds)
        exchange.note("goes on to the broker")
        await exchange.forward()
        if self.drop:
            await asyncio.wait_for(exchange.answered(), _LATE_ANSWER_SECONDS)

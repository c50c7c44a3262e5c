"""Subscriptions to a store's changes as server-sent events (WHATWG HTML, section 9.2).

Each event has a name and JSON as data. An event with an id is the position from which a client continues: browsers send
it as Last-Event-ID when they connect again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..logs.log_floods import bounded_logger
from ..queries.change_position import ChangePosition
from ..queries.store_changes import ShownChange, StoreChanges, Subscribe, Subscription
from ..queries.store_routing import RETRY_SECONDS, QueryError, position_json
from .security import Receive, Scope, Send

T = TypeVar("T")

logger = bounded_logger(__name__)

#: Seconds without an event until a comment, or the new position, is sent: proxies close connections that are silent.
HEARTBEAT_SECONDS = 15.0
#: How long a browser waits before it connects again, in ms.
RECONNECT_MS = 1_000


class StoppingError(Exception):
    """The server ends."""


def endpoint(
    changes: StoreChanges,
    stopping: asyncio.Event,
    read: Callable[[Request], Subscribe],
    refuse: Callable[[QueryError], Response],
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint. stopping: set when the server ends. read: of a request's parameters; raises QueryError.

    refuse: makes the response of an error before the first event.
    """
    places = asyncio.Semaphore(changes.subscribers_max)
    limiter = CapacityLimiter(max(changes.subscribers_max, 1))

    async def subscribe(request: Request) -> Response:
        if places.locked():
            message = f"There are {changes.subscribers_max} subscriptions (penstock.http.subscriptions.max) already."
            return refuse(QueryError(503, "TOO_MANY_REQUESTS", message, RETRY_SECONDS))
        await places.acquire()
        stream = EventStream(changes, stopping, limiter, places.release)
        try:
            await stream.open(read(request))
        except QueryError as error:
            stream.close()
            return refuse(error)
        except StoppingError:
            stream.close()
            return refuse(_stopping())
        except BaseException:
            stream.close()
            raise
        return _Events(stream)

    return subscribe


class _Events(StreamingResponse):
    """The response; it closes the stream, also if the client is gone before the first event."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__(stream.events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


class EventStream:
    """The events of one subscription. at_end: called once, when it is closed."""

    def __init__(
        self, changes: StoreChanges, stopping: asyncio.Event, limiter: CapacityLimiter, at_end: Callable[[], None]
    ) -> None:
        self._changes = changes
        self._stopping = stopping
        self._limiter = limiter
        self._at_end: Callable[[], None] | None = at_end
        self._news = asyncio.Event()
        self._subscription: Subscription | None = None
        self._sent: ChangePosition | None = None

    async def open(self, request: Subscribe) -> None:
        """Begin the subscription. Raises QueryError, StoppingError."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._news.set)

        def subscribe() -> None:
            made = self._changes.subscribe(request, wake)
            self._subscription = made
            if self._at_end is None:  # the client has gone meanwhile
                made.close()

        await self._in_thread(subscribe)

    def close(self) -> None:
        """Release everything."""
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            if self._subscription is not None:
                self._subscription.close()
            at_end()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events."""
        subscription = self._subscription
        assert subscription is not None
        try:
            async for part in self._events(subscription):
                yield part
        except QueryError as error:
            yield self._end(subscription, error)
        except StoppingError:
            yield self._end(subscription, _stopping())
        except Exception:
            logger.exception("A subscription to changes failed")
            yield self._end(subscription, QueryError(500, "INTERNAL", "A bug in Penstock; the log has the traceback."))

    async def _events(self, subscription: Subscription) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % RECONNECT_MS
        if subscription.has_rows:
            yield event("snapshot", orjson.dumps({"changelog": subscription.topic}))
            pages = subscription.rows()
            while (page := await self._in_thread(partial(next, pages, None))) is not None:
                yield b"".join(event("row", _with(row.json, partition=number)) for number, row in page)
        is_announced = False
        while True:
            if not is_announced and subscription.position is not None:
                is_announced = True
                yield self._position(subscription)
            self._news.clear()
            found = await self._in_thread(subscription.changes)
            if found:
                self._sent = found[-1].position or self._sent
                yield b"".join(map(_change, found))
            elif subscription.is_live and not await self._has_news():
                yield b": heartbeat\n\n" if subscription.position == self._sent else self._position(subscription)

    def _position(self, subscription: Subscription) -> bytes:
        position = self._sent = subscription.position
        offsets = {} if position is None else {str(partition): at for partition, at in position.offsets.items()}
        inputs = position_json(subscription.input_position)
        data = {"changelog": subscription.topic, "offsets": offsets, "position": inputs}
        return event("position", orjson.dumps(data), position)

    def _end(self, subscription: Subscription, error: QueryError) -> bytes:
        return event("end", orjson.dumps(error.body()), self._sent)

    async def _has_news(self) -> bool:
        """Wait for changes, up to a heartbeat. Raises StoppingError."""
        try:
            await self._unless_stopping(asyncio.wait_for(self._news.wait(), HEARTBEAT_SECONDS))
        except TimeoutError:
            return False
        return True

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Run a function in a thread, which is left behind when the server stops or the client is gone."""
        return await self._unless_stopping(to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limiter))

    async def _unless_stopping(self, waiting: Awaitable[T]) -> T:
        """Return the result of an awaitable. Raises StoppingError if the server ends before."""
        task = asyncio.ensure_future(waiting)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StoppingError
        finally:
            for each in (task, stop):
                each.cancel()


def event(name: str, data: bytes, position: ChangePosition | None = None) -> bytes:
    """Return an event. data: JSON in one line."""
    number = b"" if position is None else b"id: %s\n" % str(position).encode()
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), number, data)


def _change(shown: ShownChange) -> bytes:
    change = shown.change
    data = _with(shown.row, partition=change.partition, offset=change.offset)
    return event("delete" if shown.is_deletion else "change", data, shown.position)


def _with(row: bytes, **more: int) -> bytes:
    """Return a JSON object with further members."""
    return row[:-1] + b"," + orjson.dumps(more)[1:]


def _stopping() -> QueryError:
    return QueryError(
        503, "STOPPING", "This host stops. Continue from the id of the last event, at any host.", RETRY_SECONDS
    )

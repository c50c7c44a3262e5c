"""The endpoints: each is a function from a request to a response, run in a thread so that it may block.

The parameters of a query are validated first; see parameters.py.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.topology.errors import StreamsError
from penstock.workers.control.messages import ReadStore

from ..logs.log_floods import bounded_logger
from ..queries.store_routing import Found, QueryError, position_json
from . import arrow, host_watch, prometheus, state_query, subscriptions
from .forwarding import ARROW, CHANGES, FORWARDED, HOST_COMMANDS_PATH
from .parameters import (
    ArrowParameters,
    StoreParameters,
    arrow_parameters,
    decoded,
    decoded_query,
    store_parameters,
    subscribe_parameters,
)
from .security import HEALTH_PATHS, Application, Gate, HttpAddress, Receive, Scope, Send
from .view import HttpView

logger = bounded_logger(__name__)

Endpoint = Callable[[HttpView, Request], Response]
#: Threads reserved for health checks; queries may use all others.
HEALTH_THREADS = 4
#: Maximum number of hosts that may watch this one at a time, because each occupies a request.
WATCHES_MAX = 32
#: The path of a key; only a literal slash separates its parts.
_KEY_PATH = re.compile("/stores/(?P<store>[^/]+)/(?P<key>.*)")
_FORWARDED_FIELD = FORWARDED.lower().encode()
PAGES = Path(__file__).parent / "dashboard"
#: File and content type of the dashboard's parts, by path.
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/store": ("store.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/store.js": ("store.js", "text/javascript; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
}


def http_app(view: HttpView, address: HttpAddress, stopping: asyncio.Event) -> Application:
    """Return the ASGI application. view: the application to show. stopping: set when the server ends."""
    health = CapacityLimiter(HEALTH_THREADS)

    def route(path: str, endpoint: Endpoint, method: str = "GET") -> Route:
        return Route(path, _endpoint(view, endpoint, health if path in HEALTH_PATHS else None), methods=[method])

    routes = [
        route("/health/live", _live),
        route("/health/ready", _ready),
        route("/metrics", _metrics),
        route("/status", lambda view, _: answer(view.administration.status())),
        route("/tasks", lambda view, _: answer(view.tasks())),
        route("/lag", lambda view, _: answer(view.administration.lag())),
        route("/topology", _topology),
        Route(host_watch.PATH, _watch_until(stopping)),
        route("/stores", lambda view, _: answer(view.stores())),
        Route("/sql", _with_body(view, partial(arrow.sql_response, view.sql)), methods=["POST"]),
        route("/stores/{name}", _store),
        Route(
            f"/stores/{{name}}/{CHANGES}", subscriptions.endpoint(view.changes, stopping, subscribe_parameters, _error)
        ),
        route("/dashboard.json", lambda view, _: answer(view.dashboard())),
        route("/pause", lambda view, _: answer(view.administration.pause()), "POST"),
        route("/resume", lambda view, _: answer(view.administration.resume()), "POST"),
        route("/threads/{name}/restart", _restart, "POST"),
        *(
            Route(f"{HOST_COMMANDS_PATH}/{name}", _with_body(view, partial(_carried_out, action)), methods=["POST"])
            for name, action in view.administration.host_actions.items()
        ),
        *(route(path, _file(*file)) for path, file in FILES.items()),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _on_http_error})  # type: ignore[dict-item]
    app.router.redirect_slashes = False  # the address would come from the Host header, which any client may choose
    return Gate(PointReads(app, view), address)


def wants_arrow(accept: str) -> bool:
    """Return whether a client accepts batches of Arrow."""
    return ARROW in accept


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON."""
    return Response(orjson.dumps(value), status, headers, "application/json")


def _error(error: QueryError) -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return answer(error.body(), error.status, headers)


def _endpoint(
    view: HttpView, endpoint: Endpoint, limiter: CapacityLimiter | None
) -> Callable[[Request], Awaitable[Response]]:
    def call(request: Request) -> Response:
        try:
            return endpoint(view, request)
        except Exception as error:  # noqa: BLE001  it becomes the response
            return _failure(request.scope, error)

    @wraps(endpoint)
    async def call_in_thread(request: Request) -> Response:
        return await to_thread.run_sync(call, request, limiter=limiter)

    return call_in_thread


def _failure(scope: Scope, error: Exception) -> Response:
    """Return the response for an error of an endpoint."""
    match error:
        case HTTPException():
            return _http_error(scope, error)
        case QueryError():
            return _error(error)
        case StreamsError():
            return _error(QueryError(409, "REFUSED", str(error)))
        case TimeoutError():
            return _error(QueryError(503, "TIMEOUT", "The supervisor does not respond; see the log for the reason.", 5))
    logger.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    return _error(QueryError(500, "INTERNAL", "A bug in Penstock; the log has the traceback."))


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    return _failure(request.scope, error)


def _http_error(scope: Scope, error: HTTPException) -> Response:
    codes = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
    text = f"There is nothing at {scope['path']}." if error.status_code == 404 else str(error.detail)
    return _error(QueryError(error.status_code, codes.get(error.status_code, "HTTP_ERROR"), text))


def _live(view: HttpView, _request: Request) -> Response:
    alive, why = view.live()
    return answer({"live": alive, "reason": why}, 200 if alive else 503)


def _ready(view: HttpView, _request: Request) -> Response:
    ready, why = view.ready()
    return answer({"ready": ready, "reason": why}, 200 if ready else 503, None if ready else {"Retry-After": "1"})


def _metrics(view: HttpView, _request: Request) -> Response:
    return Response(view.exposition(), media_type=prometheus.CONTENT_TYPE)


def _watch_until(stopping: asyncio.Event) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that another host waits at: it answers at once, and says at the end whether this one stops.

    A response that breaks off is that of a host that has not stopped, but died: see host_watch.py.
    """

    places = asyncio.Semaphore(WATCHES_MAX)

    async def body() -> AsyncIterator[bytes]:
        async with places:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), host_watch.WATCH_SECONDS)
            yield host_watch.STOPS if stopping.is_set() else host_watch.STAYS

    async def watch(_request: Request) -> Response:
        if places.locked():
            return _error(QueryError(503, "TOO_MANY_REQUESTS", f"{WATCHES_MAX} hosts watch this one already.", 1))
        return StreamingResponse(body(), media_type="application/json")

    return watch


def _topology(view: HttpView, request: Request) -> Response:
    topology = view.topology()
    if "text/plain" in request.headers.get("accept", "") or request.query_params.get("format") == "text":
        return Response(topology["text"], media_type="text/plain")
    return answer(topology)


class PointReads:
    """ASGI application that answers reads of a key, and passes all other requests on.

    Reads are many, and the layers of Starlette take longer than all that the supervisor does for one. The event loop
    itself waits for the stream thread, because a thread would cost even more.
    """

    def __init__(self, app: Application, view: HttpView) -> None:
        self._app = app
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a key, or pass it on."""
        target = _KEY_PATH.fullmatch(scope["path"])
        if target is None or target["key"] == CHANGES:
            await self._app(scope, receive, send)
            return
        try:
            if scope["method"] not in ("GET", "HEAD"):
                raise HTTPException(405)
            response = await self._read(decoded(target["store"]), decoded(target["key"]), scope)
        except Exception as error:  # noqa: BLE001  it becomes the response
            response = _failure(scope, error)
        await response(scope, receive, send)

    async def _read(self, store: str, key: str, scope: Scope) -> Response:
        parameters = store_parameters(store, key, decoded_query(scope))
        forwarded = any(name == _FORWARDED_FIELD for name, _ in scope["headers"])
        found = await self._view.read(parameters.request, parameters.timeout, *_reach(forwarded, parameters))
        if not found.rows and not forwarded and not _is_windowed(parameters.request):
            text = f"The store {store} has nothing for the key {key!r}."
            raise QueryError(404, "NO_SUCH_KEY", text, tasks=found.tasks)
        return _rows_response(found, parameters.request.limit, forwarded)


def _store(view: HttpView, request: Request) -> Response:
    name, query = decoded(request.path_params["name"]), decoded_query(request.scope)
    if wants_arrow(request.headers.get("accept", "")):
        return arrow_rows(view, request, arrow_parameters(name, query))
    if any(parameter == state_query.QUERY for parameter, _ in query):
        return _answer_query(view, request, state_query.query_parameters(name, query))
    parameters = store_parameters(name, None, query)
    found = view.queries.read(parameters.request, parameters.timeout, *_reach(FORWARDED in request.headers, parameters))
    return _rows_response(found, parameters.request.limit, FORWARDED in request.headers)


def _reach(forwarded: bool, parameters: StoreParameters | state_query.QueryParameters) -> tuple[bool, float]:
    """Return ``local`` and ``wait`` of a read: a host that forwards one looks everywhere, and waits, itself."""
    return parameters.local or forwarded, 0 if forwarded else parameters.timeout


def _rows_response(found: Found, limit: int, forwarded: bool) -> Response:
    return Response(_rows_json(found, limit, forwarded), media_type="application/json")


def _answer_query(view: HttpView, request: Request, parameters: state_query.QueryParameters) -> Response:
    """Return the answers to a query of interactive queries v2."""
    reach = _reach(FORWARDED in request.headers, parameters)
    found = view.hosted_queries.answer(parameters.request, parameters.rows_max, parameters.timeout, *reach)
    return Response(state_query.answer_json(found), media_type="application/json")


def arrow_rows(view: HttpView, request: Request, parameters: ArrowParameters) -> Response:
    """Return the rows of a store as a stream of Arrow; see arrow.py."""
    name, timeout = parameters.request.store, parameters.timeout
    local, wait = _reach(FORWARDED in request.headers, parameters)
    if parameters.only_columns and FORWARDED in request.headers:
        found = view.scans.columns(name, timeout, local=True)
        return arrow.columns_response(found or arrow.no_columns())
    if parameters.schema is not None:
        schema = arrow.read_schema(parameters.schema)
    else:
        table = view.scans.table(name, timeout, local)
        if parameters.only_columns:
            return arrow.columns_response(table)
        schema = arrow.chosen(table.schema, parameters.columns, name)
    scan = view.scans.open(parameters.request, schema, timeout, local, wait)
    return arrow.rows_response(schema, scan)


def _with_body(
    view: HttpView, respond: Callable[[bytes, Request], Response]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for requests with a body. respond(body, request): as an Endpoint, in a thread."""

    async def run(request: Request) -> Response:
        body = await request.body()
        return await _endpoint(view, lambda _, request: respond(body, request), None)(request)

    return run


def _carried_out(action: Callable[..., object], body: bytes, _request: Request) -> Response:
    """Return the response to a command of another host. body: a JSON object with the arguments."""
    try:
        arguments = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise QueryError(400, "BAD_REQUEST", f"The body must be a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise QueryError(400, "BAD_REQUEST", "The body must be a JSON object with the command's arguments.")
    return answer(action(**arguments))


def _is_windowed(request: ReadStore) -> bool:
    return request.time_from is not None or request.time_to is not None


def _rows_json(found: Found, limit: int, ordered: bool) -> bytes:
    rows = found.rows[: limit + 1] if ordered else found.rows[:limit]
    value: dict[str, object] = {
        "tasks": found.tasks,
        "complete": found.complete,
        "truncated": len(found.rows) > limit,
        "lag": found.lag,
        "position": position_json(found.position),
    }
    if found.changelog:
        value["changelog"] = {str(partition): offset for partition, offset in found.changelog.items()}
    if found.after is not None:
        value["after"] = found.after
    if ordered:
        value["ordered_rows"] = [[_base64(row.order), orjson.Fragment(row.json)] for row in rows]
    else:
        value["rows"] = [orjson.Fragment(row.json) for row in rows]
    return orjson.dumps(value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _restart(view: HttpView, request: Request) -> Response:
    return answer(view.administration.restart_thread(decoded(request.path_params["name"])))


def _file(name: str, content_type: str) -> Endpoint:
    data = (PAGES / name).read_bytes()
    return lambda view, request: Response(data, media_type=content_type)

"""The parameters of requests: read strictly, with limits. All functions raise QueryError for an invalid one."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request

from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.workers.control.messages import ReadStore

from ..queries.store_changes import Subscribe
from ..queries.store_routing import QueryError
from .security import Scope

LIMIT = 100
LIMIT_MAX = 10_000
TIMEOUT_MS = 5_000
TIMEOUT_MAX_MS = 30_000
INT64_MAX = (1 << 63) - 1
_NAMES = (
    "from",
    "to",
    "prefix",
    "limit",
    "reverse",
    "partition",
    "max_lag",
    "time_from",
    "time_to",
    "timeout_ms",
    "local",
    "everywhere",
    "isolation",
    "at_least",
    "changelog",
    "after",
)
#: One offset of at_least=: topic-partition:offset.
_BOUND = re.compile(r"(.+)-(\d{1,10}):(\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoreParameters:
    """A read, its time limit (s), and whether it is for this host's tasks only."""

    request: ReadStore
    timeout: float
    local: bool


def decoded(part: str) -> str:
    """Return a part of a path without percent encoding; raises QueryError if it is not UTF-8."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _not_text(part) from None


def decoded_query(scope: Scope) -> list[tuple[str, str]]:
    """Return names and values of a request's query; raises QueryError if they are not UTF-8."""
    query = scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise _not_text(query) from None


def _not_text(text: str) -> QueryError:
    return bad_request(f"{text!r} is not UTF-8. Write keys that are bytes as hexadecimal digits.")


def store_parameters(store: str, key: str | None, given: Sequence[tuple[str, str]]) -> StoreParameters:
    """Return the read that a URL requests. given: names and values of its query. Raises QueryError."""
    query = checked(given, [name for name in _NAMES if key is None or name not in ("from", "to", "prefix")])
    request = ReadStore(
        0,
        store,
        key,
        query.get("from"),
        query.get("to"),
        query.get("prefix"),
        whole_number(query, "time_from", None, 0, INT64_MAX),
        whole_number(query, "time_to", None, 0, INT64_MAX),
        whole_number(query, "limit", LIMIT, 1, LIMIT_MAX) or LIMIT,
        boolean(query, "reverse"),
        whole_number(query, "partition", None, 0, (1 << 31) - 1),
        whole_number(query, "max_lag", None, 0, INT64_MAX),
        boolean(query, "everywhere"),
        after=query.get("after"),
        isolation=isolation_of(query),
        at_least=bound_of(query),
        changelog=boolean(query, "changelog"),
    )
    timeout = timeout_of(query)
    if request.changelog and request.isolation is not IsolationLevel.READ_COMMITTED:
        raise bad_request("changelog=true is for rows of a commit: add isolation=read_committed.")
    if request.after is not None and (request.partition is None or key is not None):
        raise bad_request("after= is for the pages of one partition: add partition=, and leave out the key.")
    if re.fullmatch("[0-9a-f]*", request.after or "") is None:
        raise bad_request(f"after={request.after!r} must be the after of the previous page's response.")
    if request.everywhere and key is None:
        raise bad_request("everywhere= is for a key; a range is read everywhere anyway.")
    if request.prefix is not None and (request.key_from is not None or request.key_to is not None):
        raise bad_request("prefix= is already a range: leave out from= and to=.")
    if request.time_from is not None and request.time_to is not None and request.time_from > request.time_to:
        raise bad_request(f"time_from={request.time_from} is after time_to={request.time_to}.")
    return StoreParameters(request, timeout, boolean(query, "local"))


@dataclass(frozen=True, slots=True)
class ArrowParameters(StoreParameters):
    """A scan: of these columns, None for all, or of a schema, as bytes. only_columns: without rows."""

    columns: tuple[str, ...] | None
    schema: bytes | None
    only_columns: bool


def arrow_parameters(store: str, given: Sequence[tuple[str, str]]) -> ArrowParameters:
    """Return the scan that a URL requests; see store_parameters."""
    query = dict(given)
    for name in ("reverse", "max_lag", "everywhere"):
        if name in query:
            raise bad_request(f"{name}= is not for rows as Arrow.")
    if query.get("limit", "0") != "0":
        raise bad_request("limit= is not for rows as Arrow; limit=0 returns only the columns.")
    own = {"columns", "schema", "limit"}
    read = store_parameters(store, None, [(name, value) for name, value in given if name not in own])
    if len({name for name, _ in given}) < len(given):
        raise bad_request("A parameter is given twice.")
    names = query.get("columns")
    try:
        schema = base64.urlsafe_b64decode(query["schema"]) if "schema" in query else None
    except ValueError:
        raise bad_request("schema= is not base64.") from None
    columns = None if names is None else tuple(names.split(","))
    return ArrowParameters(read.request, read.timeout, read.local, columns, schema, "limit" in query)


def subscribe_parameters(request: Request) -> Subscribe:
    """Return the subscription that a request asks for; a browser that connects again sends Last-Event-ID."""
    query = checked(decoded_query(request.scope), ("key", "prefix", "partition", "from"))
    start = request.headers.get("last-event-id") or query.get("from")
    if "key" in query and "prefix" in query:
        raise bad_request("key= is one key and prefix= many: leave out one of them.")
    partition = whole_number(query, "partition", None, 0, (1 << 31) - 1)
    return Subscribe(decoded(request.path_params["name"]), query.get("key"), query.get("prefix"), partition, start)


def checked(given: Sequence[tuple[str, str]], known: Collection[str]) -> dict[str, str]:
    """Return the parameters of a query by name. Raises QueryError for an unknown or repeated one."""
    for name, _ in given:
        if name not in known:
            raise bad_request(f"There is no parameter {name!r} here; there are {', '.join(known)}.")
    query = dict(given)
    if len(query) < len(given):
        raise bad_request("A parameter is given twice.")
    return query


def whole_number(query: Mapping[str, str], name: str, default: int | None, lowest: int, highest: int) -> int | None:
    """Return a number between two others. Raises QueryError."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and lowest <= int(text) <= highest):
        raise bad_request(f"{name}={text!r} must be a whole number from {lowest} to {highest}.")
    return int(text)


def timeout_of(query: Mapping[str, str]) -> float:
    """Return the time limit in seconds. Raises QueryError."""
    return (whole_number(query, "timeout_ms", TIMEOUT_MS, 1, TIMEOUT_MAX_MS) or TIMEOUT_MS) / 1000


def isolation_of(query: Mapping[str, str]) -> IsolationLevel | None:
    """Return the isolation level, None for the default. Raises QueryError."""
    text = query.get("isolation")
    if text is None:
        return None
    try:
        return IsolationLevel(text.lower())
    except ValueError:
        raise bad_request(
            f"isolation={text!r} must be {' or '.join(level.value for level in IsolationLevel)}."
        ) from None


def bound_of(query: Mapping[str, str]) -> Position:
    """Return the position that rows must have reached. Raises QueryError."""
    position = Position()
    for text in query["at_least"].split(",") if "at_least" in query else ():
        found = _BOUND.fullmatch(text)
        if found is None or int(found[3]) > INT64_MAX:
            raise bad_request(f"at_least={text!r} must be topic-partition:offset, or several of them with commas.")
        position = position.with_component(found[1], int(found[2]), int(found[3]))
    return position


def bound_text(bound: Position) -> str | None:
    """Return at_least= for a position, as bound_of reads it; None for an empty one."""
    return ",".join(f"{at.topic}-{at.partition}:{offset}" for at, offset in bound.offsets.items()) or None


def boolean(query: Mapping[str, str], name: str) -> bool:
    """Return true or false, which is the default. Raises QueryError."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise bad_request(f"{name}={text!r} must be true or false.")
    return text == "true"


def bad_request(message: str) -> QueryError:
    """Return the error for a request that cannot be answered."""
    return QueryError(400, "BAD_REQUEST", message)

"""Validation of query parameters and their limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from penstock.workers.control.messages import ReadStore

from ..queries.store_routing import QueryError

LIMIT = 100
LIMIT_MAX = 10_000
TIMEOUT_MS = 5_000
TIMEOUT_MAX_MS = 30_000
_LAST = (1 << 63) - 1
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
)


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


def decoded_query(scope: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of a request's query; raises QueryError if they are not UTF-8."""
    query = scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise _not_text(query) from None


def _not_text(text: str) -> QueryError:
    return _bad(f"{text!r} is not UTF-8. Write keys that are bytes as hexadecimal digits.")


def store_parameters(store: str, key: str | None, given: Sequence[tuple[str, str]]) -> StoreParameters:
    """Return the read that a URL requests. given: names and values of its query. Raises QueryError."""
    _check_names([name for name, _ in given], key is not None)
    query = dict(given)
    request = ReadStore(
        0,
        store,
        key,
        query.get("from"),
        query.get("to"),
        query.get("prefix"),
        _number(query, "time_from", None, 0, _LAST),
        _number(query, "time_to", None, 0, _LAST),
        _number(query, "limit", LIMIT, 1, LIMIT_MAX) or LIMIT,
        _boolean(query, "reverse"),
        _number(query, "partition", None, 0, (1 << 31) - 1),
        _number(query, "max_lag", None, 0, _LAST),
        _boolean(query, "everywhere"),
    )
    timeout_ms = _number(query, "timeout_ms", TIMEOUT_MS, 1, TIMEOUT_MAX_MS) or TIMEOUT_MS
    if request.everywhere and key is None:
        raise _bad("everywhere= is for a key; a range is read everywhere anyway.")
    if request.prefix is not None and (request.key_from is not None or request.key_to is not None):
        raise _bad("prefix= is already a range: leave out from= and to=.")
    if request.time_from is not None and request.time_to is not None and request.time_from > request.time_to:
        raise _bad(f"time_from={request.time_from} is after time_to={request.time_to}.")
    return StoreParameters(request, timeout_ms / 1000, _boolean(query, "local"))


def _check_names(names: Collection[str], one_key: bool) -> None:
    known = [name for name in _NAMES if not (one_key and name in ("from", "to", "prefix"))]
    for name in names:
        if name not in known:
            raise _bad(f"There is no parameter {name!r} here; there are {', '.join(known)}.")
    if len(set(names)) < len(names):
        raise _bad("A parameter is given twice.")


def _number(query: Mapping[str, str], name: str, default: int | None, lowest: int, highest: int) -> int | None:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and lowest <= int(text) <= highest):
        raise _bad(f"{name}={text!r} must be a whole number from {lowest} to {highest}.")
    return int(text)


def _boolean(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise _bad(f"{name}={text!r} must be true or false.")
    return text == "true"


def _bad(message: str) -> QueryError:
    return QueryError(400, "BAD_REQUEST", message)

"""Interactive queries v2 over HTTP: the parameters of a request, and the JSON of its answers, both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from penstock.topology.query import state_queries
from penstock.topology.query.position import PositionBound, merged
from penstock.topology.query.state_queries import Query, ResultOrder
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult
from penstock.workers.queries.store_answers import PartitionResults, ShownResult

from ..queries.store_routing import position_json, read_position
from .parameters import (
    INT64_MAX,
    LIMIT,
    LIMIT_MAX,
    bad_request,
    boolean,
    bound_of,
    bound_text,
    checked,
    isolation_of,
    timeout_of,
    whole_number,
)

#: The parameter that names the type of the query.
QUERY = "query"
_TYPES: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(state_queries.KeyQuery, state_queries.TimestampedKeyQuery, state_queries.TimestampedKeyWithHeadersQuery),
        *(state_queries.RangeQuery, state_queries.TimestampedRangeQuery),
        *(state_queries.TimestampedRangeWithHeadersQuery, state_queries.WindowKeyQuery),
        *(state_queries.TimestampedWindowKeyWithHeadersQuery, state_queries.WindowRangeQuery),
        *(state_queries.TimestampedWindowRangeWithHeadersQuery, state_queries.VersionedKeyQuery),
        state_queries.MultiVersionedKeyQuery,
    )
}
#: Parameters by the field of the query.
_PARAMETERS = {
    "key": "key",
    "lower_bound": "from",
    "upper_bound": "to",
    "time_from": "time_from",
    "from_timestamp": "time_from",
    "time_to": "time_to",
    "to_timestamp": "time_to",
    "as_of_timestamp": "as_of",
    "result_order": "order",
    "is_skip_cache": "skip_cache",
}
_TIMES = frozenset(("time_from", "time_to", "as_of"))
_REQUEST = (
    *("partitions", "at_least", "require_active", "isolation", "execution_info"),
    *("limit", "timeout_ms", "local"),
)
#: Maximum number of a partition.
_PARTITION_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class QueryParameters:
    """A request in text form. rows_max: of each partition. timeout: in seconds. local: of this host's tasks only."""

    request: StateQueryRequest
    rows_max: int
    timeout: float
    local: bool


def query_parameters(store: str, given: Sequence[tuple[str, str]]) -> QueryParameters:
    """Return the request of a URL. given: names and values of its query. Raises QueryError."""
    name = dict(given).get(QUERY, "")
    kind = _TYPES.get(name)
    if kind is None:
        raise bad_request(f"There is no query {name!r}; there are {', '.join(_TYPES)}.")
    own = {field.name: _PARAMETERS[field.name] for field in dataclasses.fields(kind)}
    query = checked(given, (QUERY, *own.values(), *_REQUEST))
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and own[field.name] not in query:
            raise bad_request(f"A {name} needs {own[field.name]}=.")
    values = {field: _value(query, parameter) for field, parameter in own.items() if parameter in query}
    times = [values[field] for field in own if own[field] in ("time_from", "time_to") and field in values]
    if len(times) > 1 and times[0] > times[1]:
        raise bad_request(f"time_from={times[0]} is after time_to={times[1]}.")
    if "key" in values and times and name in ("WindowRangeQuery", "TimestampedWindowRangeWithHeadersQuery"):
        raise bad_request(f"A {name} has key=, for session stores, or time_from= and time_to=, for window stores.")
    request: StateQueryRequest = StateQueryRequest(
        store,
        kind(**values),
        PositionBound.at(bound_of(query)),
        _partitions(query),
        boolean(query, "require_active"),
        boolean(query, "execution_info"),
        isolation_of(query),
    )
    rows_max = whole_number(query, "limit", LIMIT, 1, LIMIT_MAX) or LIMIT
    return QueryParameters(request, rows_max, timeout_of(query), boolean(query, "local"))


def _value(query: Mapping[str, str], name: str) -> Any:
    if name in _TIMES:
        return whole_number(query, name, None, 0, INT64_MAX)
    if name == "skip_cache":
        return boolean(query, name)
    if name == "order":
        try:
            return ResultOrder(query[name])
        except ValueError:
            orders = ", ".join(order.value for order in ResultOrder)
            raise bad_request(f"order={query[name]!r} must be one of {orders}.") from None
    return query[name]


def _partitions(query: Mapping[str, str]) -> frozenset[int] | None:
    if "partitions" not in query:
        return None
    texts = query["partitions"].split(",")
    numbers = (whole_number({"partitions": text}, "partitions", None, 0, _PARTITION_MAX) for text in texts)
    return frozenset(number for number in numbers if number is not None)


def path_of(request: StateQueryRequest, rows_max: int) -> str:
    """Return path and query string of a request, as query_parameters reads them."""
    query: Query[Any] = request.query
    fields = {_PARAMETERS[field.name]: getattr(query, field.name) for field in dataclasses.fields(query)}  # type: ignore[arg-type]
    partitions = request.partitions
    values = {
        QUERY: type(query).__name__,
        **fields,
        "partitions": None if partitions is None else ",".join(map(str, sorted(partitions))),
        "at_least": bound_text(request.position_bound.position),
        "require_active": request.is_require_active,
        "execution_info": request.execution_info_enabled,
        "isolation": request.isolation_level,
        "limit": rows_max,
    }
    written = {name: _written(value) for name, value in values.items() if value is not None}
    return f"/stores/{quote(request.store_name, safe='')}?{urlencode(written)}"


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "value", value))


def answer_json(results: PartitionResults) -> bytes:
    """Return the answers for JSON: ``partitions``, or ``global``, and the ``position`` of all successes."""
    position = merged(result.position for result in results.values() if result.is_success)
    shown = {partition: _result_json(result) for partition, result in results.items()}
    if None in shown:
        return orjson.dumps({"position": position_json(position), "global": shown[None]})
    numbers = sorted(partition for partition in shown if partition is not None)
    return orjson.dumps({"position": position_json(position), "partitions": {str(n): shown[n] for n in numbers}})


def _result_json(result: QueryResult[ShownResult]) -> dict[str, Any]:
    found: dict[str, object] = {}
    if result.failure_reason is not None:
        found["failure"] = {"reason": result.failure_reason.name, "message": result.failure_message}
    else:
        assert result.value is not None
        found |= {"result": orjson.Fragment(result.value.json), "truncated": result.value.truncated}
    found["position"] = position_json(result.position)
    if result.execution_info:
        found["execution_info"] = list(result.execution_info)
    return found


def results_of(answer: Mapping[str, Any]) -> PartitionResults:
    """Return the answers that answer_json has written."""
    return {int(partition): _result_of(one) for partition, one in answer["partitions"].items()}


def _result_of(answer: Mapping[str, Any]) -> QueryResult[ShownResult]:
    position, info = read_position(answer["position"]), tuple(answer.get("execution_info", ()))
    if "failure" in answer:
        failure = answer["failure"]
        return QueryResult(None, FailureReason[failure["reason"]], failure["message"], position, info)
    return QueryResult(ShownResult(orjson.dumps(answer["result"]), answer["truncated"]), None, "", position, info)

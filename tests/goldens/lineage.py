"""Dependencies of a case's results: which of them must be equal when the cache merges updates, or after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

Op = Mapping[str, Any]


def parents(op: Op) -> list[str]:
    """Return the ids of an entry's inputs."""
    inputs = [entry["from"] for entry in op.get("inputs", ())]
    return [*(op[field] for field in ("from", "with") if field in op), *inputs]


def results(op: Op) -> Iterator[str]:
    """Yield the ids of an entry's results."""
    if "id" in op:
        yield op["id"]
    yield from (branch["id"] for branch in op.get("branches", ()))
    if op.get("default"):
        yield op["default"]["id"]


def derived_from(topology: Iterable[Op], starts: Callable[[Op], bool]) -> set[str]:
    """Return the ids of the results of these entries, and of all results derived from them."""
    found: set[str] = set()
    for op in topology:
        if starts(op) or not found.isdisjoint(parents(op)):
            found.update(results(op))
    return found


def stores_of(topology: Iterable[Op], ids: set[str]) -> set[str]:
    """Return the names of the stores that entries with these ids keep or use."""
    found = (op.get(field) for op in topology if not ids.isdisjoint(results(op)) for field in ("store", "uses"))
    return {name for name in found if name is not None}


class Same(Enum):
    """The part of a result that is the same with a cache and without."""

    RECORDS = "every record"
    LIVE_ROWS = "the last value of each key, at any time for who reads the table"
    LAST_ROWS = "the last value of each key, once all is flushed"
    SUMS = "the last value of each key, where none and 0 are the same: a group that came and went leaves a 0"
    LAST_RECORDS = "the last record of each key, but how many there are depends on which updates were merged"
    NOTHING = "nothing: it depends on which updates were merged"


_ROWS = (Same.LIVE_ROWS, Same.LAST_ROWS)
_AGGREGATIONS = ("count", "reduce", "aggregate")
_REKEYING = ("select_key", "map", "flat_map", "group_by", "repartition", "table_fk_join")


def same_with_cache(topology: Iterable[Op]) -> dict[str, Same]:
    """Return for each result the part that a cache must not change, whenever it is flushed, if nothing expires.

    The exceptions are Kafka Streams' own, and _exception names them.
    """
    found: dict[str, Same] = {}
    behind: dict[str, list[Op]] = {}
    for op in topology:
        ways = [behind[parent] for parent in parents(op)]
        given = [found[parent] for parent in parents(op)]
        same = Same.NOTHING if _exception(op, ways) else _same(op, given)
        for result in results(op):
            found[result] = same
            behind[result] = [*(entry for way in ways for entry in way), op]
    return found


def _exception(op: Op, ways: list[list[Op]]) -> str | None:
    """Return why a cache may change the results of an entry, None if it may not. ways: the entries behind each
    parent.
    """
    name = op["op"]
    names = {entry["op"] for way in ways for entry in way}
    if len(ways) == 2 and any(entry is other for entry in ways[0] for other in ways[1]) and name == "table_table_join":
        return "both sides change at once: an inner join then keeps its row"
    if len(ways) == 2 and not names.isdisjoint(_REKEYING):
        return "which of two topics is read first, at equal timestamps, depends on what else there is to read"
    if name in _AGGREGATIONS and "table_table_join" in names:
        return "the old value of a join may be one that never was, if both sides change in one flush"
    if name in _AGGREGATIONS and names & {"count", "aggregate"}:
        return "without a cache the first update of an aggregate has the initializer's value as its old value"
    return None


def _same(op: Op, given: list[Same]) -> Same:
    name = op["op"]
    if name == "stream":
        return Same.RECORDS
    if name in ("table", "global_table"):
        return Same.LIVE_ROWS
    if all(one is Same.RECORDS for one in given):
        return Same.LIVE_ROWS if name in ("to_table", *_AGGREGATIONS) else Same.RECORDS
    if name in ("stream_table_join", "stream_global_join"):
        return Same.RECORDS if given == [Same.RECORDS, Same.LIVE_ROWS] else Same.NOTHING
    return _same_table(op, given) if all(one in _ROWS for one in given) else Same.NOTHING


def _same_table(op: Op, given: list[Same]) -> Same:
    """Return the unchanged part of a result derived from tables."""
    name = op["op"]
    if name == "to_stream":
        return Same.LAST_RECORDS
    if op.get("store_kind") == "versioned":
        return Same.NOTHING  # the versions depend on which updates were merged
    if name == "group_by":
        return Same.LAST_ROWS
    if name in _AGGREGATIONS:
        return Same.SUMS if name == "count" or "sum" in (op.get("fn"), op.get("agg")) else Same.NOTHING
    if name in ("filter", "filter_not", "map_values", "table_table_join"):
        live = "store" not in op and given == [Same.LIVE_ROWS] * len(given)
        return Same.LIVE_ROWS if live else Same.LAST_ROWS
    return Same.NOTHING  # suppress by design; a foreign-key join if both sides of a row change at once

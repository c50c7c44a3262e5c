"""What a branch has written, compared with what its original has written since the cut, and the state of both.

Records of a key are processed in their order, so copies and tallies of keys are the same, byte for byte. A group's
records come from several partitions, and meet in another order: each of its tallies must be whole, and none may lack
what the original has counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from tests.chaos.checker import Sight

#: The records of a key in a partition of an output.
Chain = list[Sight]
#: The last tallies, by store and then by key.
Tables = Mapping[str, Mapping[str, Any]]


class BranchOutputs:
    """The outputs of both applications since the cut, and their tables, which may have got further in the branch.

    exact: the outputs in which each key has the same records, with the original's names; all others have tallies of
    groups. prefix: before the names of the branch's outputs.
    """

    def __init__(self, exact: Iterable[str], prefix: str, original: Iterable[Sight], tables: Tables) -> None:
        self._exact = frozenset(exact)
        self._prefix = prefix
        self._original = _chains(original)
        self._tables = tables
        self._branch: dict[tuple[str, int, bytes], Chain] = {}
        self._own_tables: Tables = {}

    def see(self, branch: Iterable[Sight], tables: Tables) -> None:
        """Take in all that the branch has written until now, and its tables."""
        self._branch = _chains(branch, self._prefix)
        self._own_tables = tables

    @property
    def compared(self) -> int:
        """The number of outputs of the original."""
        return sum(map(len, self._original.values()))

    def missing(self) -> list[str]:
        """Return what the original has and the branch has not, or not yet."""
        lacking = [
            f"{_named(place)} has {len(self._branch.get(place, ()))} records, and not yet {_content(chain[-1])}"
            for place, chain in self._original.items()
            if not self._has_all(place, chain)
        ]
        behind = [
            f"the store {store} has {self._own_tables.get(store, {}).get(key)} of {key}, the original {tally}"
            for store, table in self._tables.items()
            for key, tally in table.items()
            if not includes(self._own_tables.get(store, {}).get(key), tally)
        ]
        return lacking + behind

    def _has_all(self, place: tuple[str, int, bytes], chain: Chain) -> bool:
        found = self._branch.get(place, [])
        if place[0] in self._exact:
            return len(found) >= len(chain)
        return bool(found) and includes(found[-1].content, chain[-1].content)

    def faults(self) -> Iterator[str]:
        """Yield what differs, as far as both have got."""
        for place, found in self._branch.items():
            if place[0] in self._exact:
                yield from _differences(place, self._original.get(place, []), found)
            else:
                yield from _torn(place, found)
        for store, table in self._own_tables.items():
            for key in sorted(table.keys()):
                if not is_whole(table[key]):
                    yield f"the store {store} has {table[key]} of {key}, which lacks or repeats records"


def _chains(records: Iterable[Sight], prefix: str = "") -> dict[tuple[str, int, bytes], Chain]:
    """Return records by output, partition and key."""
    chains: defaultdict[tuple[str, int, bytes], Chain] = defaultdict(list)
    for record in records:
        chains[record.topic.removeprefix(prefix), record.partition, record.key].append(record)
    return dict(chains)


def _named(place: tuple[str, int, bytes]) -> str:
    topic, partition, key = place
    return f"{key.decode()} in {topic}-{partition}"


def _differences(place: tuple[str, int, bytes], original: Chain, branch: Chain) -> Iterator[str]:
    """Yield the first record of a key that differs: the later ones follow from it."""
    for number, (wanted, found) in enumerate(zip(original, branch, strict=False)):
        if _content(wanted) != _content(found):
            yield f"{_named(place)}: record {number} since the cut is {_content(found)}, not {_content(wanted)}"
            return


def _content(record: Sight) -> tuple[object, ...]:
    return record.value, record.timestamp, record.headers


def _torn(place: tuple[str, int, bytes], branch: Chain) -> Iterator[str]:
    """Yield the first tally of a group that lacks or repeats a record."""
    for record in branch:
        if not is_whole(record.content):
            yield f"{_named(place)}: {record.content} lacks or repeats records"
            return
    for one, other in pairwise(branch):
        if other.content["records"] != one.content["records"] + 1:
            yield f"{_named(place)}: {other.content} follows {one.content}"
            return


def _numbers(tally: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the last number of each key in a tally; that of a single key has no names."""
    last = tally["last"]
    return last if isinstance(last, dict) else {"": last}


def is_whole(tally: Mapping[str, Any]) -> bool:
    """Return whether a tally has counted each record of its keys once, up to the last one."""
    numbers = _numbers(tally).values()
    total = sum(number * (number + 1) // 2 for number in numbers)
    return tally == {"records": sum(numbers), "sum": total, "last": tally["last"], "breaks": 0}


def includes(tally: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Return whether a tally has counted what another one has."""
    mine = {} if tally is None else _numbers(tally)
    return all(mine.get(key, 0) >= number for key, number in _numbers(other).items())

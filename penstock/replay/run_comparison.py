"""Compares the results of two runs: sent records by key and time, stores row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import orjson

from .compared_values import ROWS, SENT

#: Differences of each kind that are shown; all are counted.
SHOWN = 5
#: What a run has sent for one topic, key and time: pairs of the input record's index and the compared value.
_Sent = list[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class SentDifference:
    """Records of one topic, key and time (ms) that differ, from the input record with this index on.

    key, old, new: as in the runs' files, or as shown; None if there is no such record.
    """

    topic: str
    key: Any
    timestamp: int | None
    index: int
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs; key, old, new as in a SentDifference."""

    store: str
    key: Any
    old: Any
    new: Any


D = TypeVar("D", SentDifference, RowDifference)


@dataclass
class Comparison:
    """The differences of two runs. records: that both have processed. changes: of changelogs; they only show where a
    row begins to differ. counts: of rows and sent records that differ, by store and topic. errors: of both runs.
    """

    records: int = 0
    sent: list[SentDifference] = field(default_factory=list)
    changes: list[SentDifference] = field(default_factory=list)
    rows: list[RowDifference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: tuple[str | None, str | None] = (None, None)

    @property
    def are_equal(self) -> bool:
        """Whether the runs have the same results."""
        return not (self.sent or self.rows or self.errors[0] != self.errors[1])

    @property
    def first(self) -> int | None:
        """The index of the first input record that makes a difference, None if it is not known."""
        found = [each.index for each in (*self.sent, *self.changes)]
        if self.errors[0] != self.errors[1]:
            found.append(self.records - 1)
        return min(found, default=None)

    def to_show(self, side: int) -> list[tuple[str, str, Any, Any]]:
        """Return the differences to show, for one side (0: old, 1: new): kind, topic or store, key, and value."""
        sent = ((SENT, each.topic, each.key, (each.old, each.new)[side]) for each in self.sent[:SHOWN])
        rows = ((ROWS, each.store, each.key, (each.old, each.new)[side]) for each in self.rows)
        return [*sent, *rows]

    def as_shown(self, old: Sequence[Any], new: Sequence[object]) -> Comparison:
        """Return the differences to show with their shown keys and values: those of to_show(), each None or both."""
        sent = self.sent[:SHOWN]
        return replace(self, sent=_shown(sent, old, new), rows=_shown(self.rows, old[len(sent) :], new[len(sent) :]))


def _shown(differences: Sequence[D], old: Sequence[Any], new: Sequence[Any]) -> list[D]:
    return [
        replace(each, key=(one or other)[0], old=one and one[1], new=other and other[1])
        for each, one, other in zip(differences, old, new, strict=False)
    ]


def compare_runs(old: Path, new: Path) -> Comparison:
    """Return the differences between the results in two directories."""
    found = Comparison()
    pending: dict[tuple[Any, ...], tuple[_Sent, _Sent]] = {}
    for index, (one, other) in enumerate(zip(_lines(old / SENT), _lines(new / SENT), strict=False)):
        found.records += 1
        if one != other:
            _note(pending, 0, index, one[1])
            _note(pending, 1, index, other[1])
            found.errors = one[2], other[2]
    for place, (mine, yours) in pending.items():
        _add_sent(found, place, mine, yours)
    for differences in (found.sent, found.changes):
        differences.sort(key=lambda each: each.index)
    if found.errors == (None, None):
        _add_rows(found, old / ROWS, new / ROWS)
    return found


def _lines(path: Path) -> Iterator[list[Any]]:
    with path.open("rb") as file:
        yield from map(orjson.loads, file)


def _note(pending: dict[tuple[Any, ...], tuple[_Sent, _Sent]], side: int, index: int, sent: list[list[Any]]) -> None:
    for topic, key, timestamp, value, is_changelog in sent:
        pending.setdefault((topic, key, timestamp, is_changelog), ([], []))[side].append((index, value))


def _add_sent(found: Comparison, place: tuple[Any, ...], old: _Sent, new: _Sent) -> None:
    topic, key, timestamp, is_changelog = place
    for one, other in zip_longest(old, new):
        if one is None or other is None or one[1] != other[1]:
            index = min(each[0] for each in (one, other) if each is not None)
            values = (None if each is None else each[1] for each in (one, other))
            difference = SentDifference(topic, key, timestamp, index, *values)
            if is_changelog:
                found.changes.append(difference)
            else:
                found.sent.append(difference)
                found.counts[topic] += 1
            return


def _add_rows(found: Comparison, old: Path, new: Path) -> None:
    """Merge the rows of both runs, which are sorted by store and key."""
    mine, yours = _lines(old), _lines(new)
    one, other = next(mine, None), next(yours, None)
    while one is not None or other is not None:
        places = [each[:2] for each in (one, other) if each is not None]
        place = min(places)
        left = one[2] if one is not None and one[:2] == place else None
        right = other[2] if other is not None and other[:2] == place else None
        if left != right:
            found.counts[place[0]] += 1
            if len(found.rows) < SHOWN:
                found.rows.append(RowDifference(place[0], place[1], left, right))
        if left is not None:
            one = next(mine, None)
        if right is not None:
            other = next(yours, None)

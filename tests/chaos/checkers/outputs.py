"""Compares the records of an output topic with an oracle's results for the same input: a table, a bag of records, or
sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

#: A record's key, value and headers.
Row = tuple[bytes, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass
class Differences:
    """lost, doubled, alien: records that are missing, duplicated, or without an input; rows of a table count like
    records.

    wrong: rows with another value than the oracle's.
    """

    lost: int = 0
    doubled: int = 0
    alien: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def none(self) -> bool:
        """True if there are no differences."""
        return not (self.lost or self.doubled or self.alien or self.wrong)

    def __add__(self, other: Differences) -> Differences:
        both = (self.lost + other.lost, self.doubled + other.doubled, self.alien + other.alien)
        return Differences(*both, self.wrong + other.wrong)


def compare_tables(name: str, expected: Iterable[Row], found: Iterable[Row]) -> Differences:
    """Compare the last value of each key; a key whose last value is null is not in the table."""
    wanted, rows = _table(expected), _table(found)
    wrong = [
        f"{name}, {key!r}: {rows[key]!r} instead of {value!r}"
        for key, value in sorted(wanted.items())
        if rows.get(key, value) != value
    ]
    return Differences(len(wanted.keys() - rows.keys()), 0, len(rows.keys() - wanted.keys()), wrong)


def _table(records: Iterable[Row]) -> dict[bytes, bytes]:
    last = {key: value for key, value, _ in records}
    return {key: value for key, value in last.items() if value is not None}


def compare_bags(expected: Iterable[Row], found: Iterable[Row]) -> Differences:
    """Compare records in any order."""
    return compare_counts(Counter(expected), Counter(found))


def compare_counts(expected: Counter[Any], found: Counter[Any]) -> Differences:
    """Compare the number of records of each kind."""
    surplus = found - expected
    doubled = sum(count for what, count in surplus.items() if what in expected)
    return Differences((expected - found).total(), doubled, surplus.total() - doubled)

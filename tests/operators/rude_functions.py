"""User functions that misbehave: they keep their arguments and change them later, and return invalid values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from enum import IntEnum
from typing import Any


@dataclass
class Point:
    x: int


class Number(IntEnum):
    """An integer type that is read back as a plain int."""

    FIVE = 5


#: Return values of functions: everything that JSON has, values that are read back as something else, and values that
#: cannot be written.
SHAPES: tuple[Callable[[int], Any], ...] = (
    lambda n: {"n": n},
    lambda n: [n, [n], {"n": [n]}],
    lambda n: f"text {n} \u00e9",
    lambda n: n,
    lambda n: n / 3,
    lambda n: n % 2 == 0,
    lambda n: (n, (n, "x")),
    lambda n: datetime(2026, 1, 1 + n % 28, 12),
    lambda n: {"on": date(2026, 1, 1 + n % 28)},
    Point,
    lambda n: {"nested": {"n": (n,)}},
)
POISON: tuple[Callable[[int], Any], ...] = (
    lambda n: {n},
    lambda n: object(),
    lambda n: {"deep": [1, {2}]},
    lambda n: "\ud800",
    lambda n: {1: {n}},
)


class Functions:
    """The functions of one topology: they keep their arguments and change them later."""

    def __init__(self, seed: int, poisons: bool) -> None:
        self.random = random.Random(seed)
        self.poisons = poisons
        self.kept: list[Any] = []

    def meddle(self, *values: Any) -> None:
        """Change the kept objects of earlier records, and keep these."""
        for value in self.kept:
            if isinstance(value, dict):
                value["changed"] = True
            elif isinstance(value, list):
                value.append("changed")
        self.kept += values

    def made(self, value: Any) -> Any:
        """Return the value for an input [shape, number]."""
        shape, number = value[0], value[1]
        if shape < 0:
            return POISON[-shape % len(POISON)](number) if self.poisons else {"n": number}
        return SHAPES[shape % len(SHAPES)](number)

    def aggregator(self) -> Callable[[Any, Any, Any], Any]:
        return self.random.choice([self.append, self.wrap, self.last, self.fail_late, self.delete])

    def append(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Change the aggregate in place, and store the record's own value in it."""
        self.check(aggregate)
        aggregate = aggregate if isinstance(aggregate, list) else [aggregate]
        aggregate[3:] = [value, self.made(value)]
        self.meddle(value, aggregate)
        return aggregate

    def wrap(self, key: Any, value: Any, aggregate: Any) -> Any:
        self.check(aggregate)
        self.meddle(value, aggregate)
        return (self.made(value), str(aggregate)[:40])

    def last(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Return the record's own value."""
        self.check(aggregate)
        self.meddle(value, aggregate)
        return value if value[1] % 2 else self.made(value)

    def fail_late(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Change the aggregate in place, and then fail."""
        self.check(aggregate)
        if isinstance(aggregate, dict):
            aggregate["by"] = value
        if self.poisons and value[0] < 0:
            raise ValueError("no")
        self.meddle(aggregate)
        return aggregate if isinstance(aggregate, dict) else {"first": self.made(value)}

    def delete(self, key: Any, value: Any, aggregate: Any) -> Any:
        self.check(aggregate)
        return None if value[1] % 3 == 0 else [self.made(value), aggregate]

    @staticmethod
    def check(value: Any) -> None:
        """Fail for a value that JSON could not have read: a value from a store has the type that its serde reads."""
        if type(value) in (list, dict):
            for inner in value.values() if isinstance(value, dict) else value:
                Functions.check(inner)
        elif type(value) not in (str, int, float, bool, type(None)):
            raise TypeError(f"a {type(value).__name__} came out of a store of JSON")

    def reduce(self, old: Any, new: Any) -> Any:
        self.check(old)
        self.meddle(old, new)
        return [self.random_free(new), old, self.made(new)] if len(str(old)) < 60 else new

    @staticmethod
    def random_free(value: Any) -> Any:
        return value

    def merge(self, key: Any, one: Any, other: Any) -> Any:
        self.check(other)
        self.meddle(one, other)
        return other if one == [] else [str(one)[:20], str(other)[:20]]

    def same_thrice(self, value: Any) -> Iterator[Any]:
        """Yield one object three times, changed in between."""
        for number in range(3):
            value[1] += number
            yield value

    def change(self, key: Any, value: Any) -> None:
        """Change a record after the operators before have processed it."""
        self.meddle(value)
        if isinstance(value, list):
            value.append("seen")
        elif isinstance(value, dict):
            value.clear()

"""Aggregates for ``aggregate()``, to use as ``from penstock import agg``: counts, sums, extremes, lists, sketches.

``stream.group_by_key().aggregate({"n": agg.count(), "total": agg.sum("amount")})`` keeps a row of results for each key,
``aggregate(agg.sum("amount"))`` a single result. Both work with windows, sessions and grouped tables.

field: which part of a record's value is aggregated. A name is a key of a dict or an attribute; names with dots lead
further inside; a function gets the value; without a field it is the value itself. As in SQL, values that are None or
missing are skipped. Values of another type are an error of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from penstock.kernel import aggregates as compiled
from penstock.kernel.aggregates import Column, Field

from ..errors import TopologyError
from ..serdes.aggregates_serde import as_json_reads
from ..type_variables import R_co
from .sketches import HyperLogLog, TDigest, require_library

__all__ = ["Aggregate", "collect", "count", "distinct", "first", "last", "max", "mean", "min", "quantiles", "sum"]


#: A name, names with dots, or a function of the record's value; None for the value itself.
FieldOption = str | Callable[[Any], object] | None
#: (label for errors, field, whether values are removed again) -> the compiled aggregate.
MakeColumn = Callable[[str, Field, bool], Column]

#: An HyperLogLog's precision, as the library allows.
_PRECISION_MIN, _PRECISION_MAX = 7, 21


@dataclass(frozen=True, repr=False)
class Aggregate(Generic[R_co]):
    """An aggregate of ``aggregate()``; R_co is the type of its result. The functions of ``agg`` make it.

    name: of that function. options: its other arguments, as text. instead: for grouped tables, what to do if values
    cannot be removed from it. Raises TopologyError for a field that is neither a name nor a function.
    """

    name: str
    field: FieldOption
    make: MakeColumn
    options: str = ""
    instead: str = ""

    def __post_init__(self) -> None:
        _field(self)  # raises

    def column(self, label: str, retracts: bool) -> Column:
        """Return the compiled aggregate; internal. retracts: rows of a table are removed again.

        Raises TopologyError if that is impossible.
        """
        if retracts and self.instead:
            raise TopologyError(f"{self!r} cannot remove the old rows of a grouped table: {self.instead}")
        return self.make(f"{label}: {self!r}" if label else repr(self), _field(self), retracts)

    def __repr__(self) -> str:
        field = getattr(self.field, "__qualname__", "function") if callable(self.field) else self.field
        given = f'"{field}"' if isinstance(self.field, str) else field
        return f"{self.name}({', '.join(part for part in (given, self.options) if part)})"


def _field(aggregate: Aggregate) -> Field:
    field = aggregate.field
    if field is None:
        return Field(())
    if isinstance(field, str):
        names = tuple(field.split("."))
        if all(names):
            return Field(names)
    elif callable(field):
        return Field((), field)
    raise TopologyError(
        f'agg.{aggregate.name}: a field is a name, such as "customer.age", or a function, not {field!r}'
    )


def count(field: FieldOption = None) -> Aggregate[int]:
    """Count the records; with a field, those that have a value there."""
    return Aggregate("count", field, lambda label, part, _: compiled.Count(label, part, field is None))


def sum(field: FieldOption = None) -> Aggregate[float]:
    """Add numbers: ints stay ints, Decimals stay Decimals. 0 without numbers."""
    return Aggregate("sum", field, compiled.Sum)


def mean(field: FieldOption = None) -> Aggregate[float | None]:
    """Return the mean of numbers, None without numbers."""
    return Aggregate("mean", field, compiled.Mean)


def min(field: FieldOption = None) -> Aggregate:
    """Keep the smallest value, None without values. A grouped table keeps each different value with a count."""
    return _extreme("min", field, largest=False)


def max(field: FieldOption = None) -> Aggregate:
    """Keep the largest value, None without values. A grouped table keeps each different value with a count."""
    return _extreme("max", field, largest=True)


def _extreme(name: str, field: FieldOption, largest: bool) -> Aggregate:
    def make(label: str, part: Field, retracts: bool) -> Column:
        return (compiled.Sorted if retracts else compiled.Extreme)(label, part, as_json_reads, largest)

    return Aggregate(name, field, make)


def first(field: FieldOption = None) -> Aggregate:
    """Keep the value that arrived first, None without values. A grouped table keeps all values."""
    return _end("first", field, last=False)


def last(field: FieldOption = None) -> Aggregate:
    """Keep the value that arrived last, None without values. A grouped table keeps all values."""
    return _end("last", field, last=True)


def _end(name: str, field: FieldOption, last: bool) -> Aggregate:
    def make(label: str, part: Field, retracts: bool) -> Column:
        if retracts:
            return compiled.End(label, part, as_json_reads, last)
        return (compiled.Last if last else compiled.First)(label, part, as_json_reads)

    return Aggregate(name, field, make)


def collect(limit: int, field: FieldOption = None) -> Aggregate[list[Any]]:
    """Keep the values that arrived first as a list, at most limit. A grouped table keeps all values.

    Raises TopologyError for a limit below 1.
    """
    if not isinstance(limit, int) or limit < 1:
        raise TopologyError(f"agg.collect needs a limit of at least 1 value, got {limit!r}")

    def make(label: str, part: Field, retracts: bool) -> Column:
        return compiled.Collect(label, part, as_json_reads, limit, retracts)

    return Aggregate("collect", field, make, f"limit={limit}")


def distinct(field: FieldOption = None, *, precision: int = 12) -> Aggregate[int]:
    """Estimate how many different values there are (HyperLogLog); needs ``penstock-streams[sketches]``.

    precision: 2^precision registers of half a byte, 2 KB for 12. The standard error is 1.04 / √(2^precision), 1.6 % for
    12. Raises ConfigError without the extra, TopologyError for a precision outside 7 … 21.
    """
    require_library()
    if not isinstance(precision, int) or not _PRECISION_MIN <= precision <= _PRECISION_MAX:
        raise TopologyError(
            f"agg.distinct needs a precision from {_PRECISION_MIN} to {_PRECISION_MAX}, got {precision!r}"
        )
    kind = HyperLogLog(precision)
    instead = "a HyperLogLog only grows. Group the table by the value first, and count its groups"
    return Aggregate(
        "distinct", field, lambda label, part, _: compiled.Sketch(label, part, kind), f"precision={precision}", instead
    )


def quantiles(
    field: FieldOption = None, *, ranks: Sequence[float] = (0.5, 0.95, 0.99)
) -> Aggregate[list[float] | None]:
    """Estimate quantiles of numbers (t-digest); needs ``penstock-streams[sketches]``. The result has them in order.

    ranks: from 0 to 1. None without numbers. Raises ConfigError without the extra, TopologyError for other ranks.
    """
    require_library()
    numbers = ranks if isinstance(ranks, Sequence) and not isinstance(ranks, str) else ()
    if not numbers or not all(isinstance(rank, int | float) and 0 <= rank <= 1 for rank in numbers):
        raise TopologyError(f"agg.quantiles needs a list of ranks from 0 to 1, such as [0.5], got {ranks!r}")
    kind = TDigest(tuple(ranks))
    instead = "a t-digest only grows. Aggregate the stream of the table's updates, or collect() the values"
    return Aggregate(
        "quantiles", field, lambda label, part, _: compiled.Sketch(label, part, kind), f"ranks={tuple(ranks)}", instead
    )

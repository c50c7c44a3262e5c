"""Sketches of Apache DataSketches: how many different values there are, and quantiles, in a few KB.

The library is the extra ``penstock-streams[sketches]``. No method changes a sketch that it gets: record caches keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..serdes.json_codec import json_encoder

_encode = json_encoder()
#: What the library hashes as an integer.
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def require_library() -> None:
    """Raise ConfigError if the library is not installed."""
    try:
        import datasketches  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"agg.distinct() and agg.quantiles() need the extra: pip install 'penstock-streams[sketches]' ({error})"
        ) from error


@dataclass(frozen=True)
class HyperLogLog:
    """Estimates how many different values there are, from 2^precision registers of 4 bits."""

    precision: int

    def checked(self, value: Any) -> int | float | str:
        """Return what the library hashes for a value: itself, or its JSON. Equal numbers count once, as in Python."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) in (str, float) or (type(value) is int and _INT_MIN <= value <= _INT_MAX):
            return value  # type: ignore[no-any-return]
        return _encode(value).decode()

    def extended(self, sketch: Any, values: list[Any]) -> Any:
        """Return a sketch of more values."""
        new = self._new() if sketch is None else self.from_bytes(self.to_bytes(sketch))
        for value in values:
            new.update(value)
        return new

    def merged(self, one: Any, other: Any) -> Any:
        """Return the sketch of the values of both."""
        from datasketches import hll_union, tgt_hll_type

        union = hll_union(self.precision)
        union.update(one)
        union.update(other)
        return union.get_result(tgt_hll_type.HLL_4)

    def result(self, sketch: Any) -> int:
        """Return the estimate."""
        return 0 if sketch is None else round(sketch.get_estimate())

    def to_bytes(self, sketch: Any) -> bytes:
        """Return the sketch as the library's implementations in all languages read it."""
        return bytes(sketch.serialize_compact())

    def from_bytes(self, data: bytes) -> Any:
        """Return the sketch of these bytes."""
        from datasketches import hll_sketch

        return hll_sketch.deserialize(data)

    def _new(self) -> Any:
        from datasketches import hll_sketch, tgt_hll_type

        return hll_sketch(self.precision, tgt_hll_type.HLL_4)


@dataclass(frozen=True)
class TDigest:
    """Estimates quantiles, best at both ends. ranks: which ones, from 0 to 1."""

    ranks: tuple[float, ...]

    def checked(self, value: Any) -> float:
        """Return the number; raises TypeError for other values, and ValueError if it is not finite."""
        if isinstance(value, str | bytes):
            raise TypeError(f"a number is needed, not {value!r} ({type(value).__name__})")
        number = float(value)
        if number - number != 0:
            raise ValueError(f"{value!r} is not a finite number")
        return number

    def extended(self, sketch: Any, values: list[float]) -> Any:
        """Return a sketch of more values."""
        new = self._new() if sketch is None else self.from_bytes(self.to_bytes(sketch))
        for value in values:
            new.update(value)
        return new

    def merged(self, one: object, other: Any) -> Any:
        """Return the sketch of the values of both."""
        new = self.from_bytes(self.to_bytes(one))
        new.merge(other)
        return new

    def result(self, sketch: Any) -> list[float] | None:
        """Return the quantiles in the order of the ranks, None without values."""
        return None if sketch is None else [sketch.get_quantile(rank) for rank in self.ranks]

    def to_bytes(self, sketch: Any) -> bytes:
        """Return the sketch as the library's implementations in all languages read it."""
        return bytes(sketch.serialize())

    def from_bytes(self, data: bytes) -> Any:
        """Return the sketch of these bytes."""
        from datasketches import tdigest_double

        return tdigest_double.deserialize(data)

    def _new(self) -> Any:
        from datasketches import tdigest_double

        return tdigest_double()

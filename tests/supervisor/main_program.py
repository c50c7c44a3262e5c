"""A user's program whose types and functions are all in its main module; the tests run its text in every possible way.

It has no empty lines within a block: an interactive interpreter ends the block there.
"""

from __future__ import annotations

import enum
import functools
import threading
from dataclasses import MISSING, dataclass, field
from typing import Any, Generic, NamedTuple, NewType, TypedDict, TypeVar

import msgspec

from penstock import InvalidStateStoreError, KafkaStreams, Serdes, StreamsBuilder

T = TypeVar("T")
Sku = NewType("Sku", str)
RATE = 1


class Kind(enum.Enum):
    NEW = "new"
    FRESH = "new"  # noqa: PIE796  an alias


@dataclass
class Line:
    sku: Sku
    pieces: int = 1
    tags: list[str] = field(default_factory=list)


class Place(NamedTuple):
    city: str
    zip: str = "?"


class Note(TypedDict, total=False):
    text: str


class Numbered(msgspec.Struct, Generic[T], kw_only=True, rename="camel"):
    order_id: T


class Order(Numbered[int], forbid_unknown_fields=True):
    lines: list[Line]
    kind: Kind = Kind.NEW
    place: Place = Place("Rome")
    notes: list[Note] = []
    pieces: int = 0
    total: int = 0
    def __post_init__(self) -> None:
        self.pieces = sum(line.pieces for line in self.lines)


@functools.cache
def doubled(number: int) -> int:
    return 2 + doubled(number - 1) if number else 0


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(value: Any, given: Any = MISSING) -> Any:
        return function(value) if given is MISSING else None
    return wrapped


@decorated
def priced(order: Order) -> Order:
    assert isinstance(order, Order)
    order.total = doubled(order.pieces) * RATE
    return order


def topology() -> Any:
    fresh = Kind.FRESH
    builder = StreamsBuilder()
    orders = builder.stream("SOURCE", key_serde=Serdes.string(), value_serde=Serdes.json(Order))
    new = orders.filter(lambda key, order: order.kind is fresh).map_values(priced)
    new.to_table(store="orders", value_serde=Serdes.json(Order)).to_stream().to("SINK")
    return builder.build()


def stored(streams: Any) -> Any:
    pace = threading.Event()
    while not streams.state.has_completed_shutdown:
        try:
            found = streams.store("orders").get("k0")
        except (InvalidStateStoreError, TimeoutError):
            found = None
        if found is not None:
            return found
        pace.wait(0.1)
    return None


def run() -> None:
    global RATE
    RATE = 10
    config = {"application.id": "APPLICATION", "bootstrap.servers": "SERVERS", "state.dir": "STATE"}
    with KafkaStreams(topology(), config) as streams:
        streams.start()
        order = stored(streams)
        print("found", isinstance(order, Order), order, flush=True)
    assert not streams.exit_code, streams.failure_reason


if __name__ == "__main__":
    run()

"""Names: which are legal, and how generated ones are numbered."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Materialized, Processor, Record, Serdes, StreamsBuilder, TopologyError
from penstock.topology.common.naming import NAME_LENGTH_MAX, validate_name


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * NAME_LENGTH_MAX, "..."])
def test_legal_names(name: str) -> None:
    assert validate_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "a\n", "x" * (NAME_LENGTH_MAX + 1)])
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(TopologyError):
        validate_name(name)


def test_an_operator_refuses_an_illegal_name() -> None:
    with pytest.raises(TopologyError, match='"not legal"'):
        StreamsBuilder().stream("in").filter(lambda key, value: True, name="not legal")


def test_a_given_name_uses_up_a_number() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in").filter(lambda key, value: True, name="keep").map_values(str)
    assert stream.name == "KSTREAM-MAPVALUES-0000000002"


class Idle(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        pass


def test_a_named_process_uses_up_no_number() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in").process(Idle, name="mine").map_values(str)
    assert stream.name == "KSTREAM-MAPVALUES-0000000001"


def test_count_with_serdes_only_uses_up_two_numbers_for_its_store() -> None:
    """As in Kafka Streams: a Materialized without a name uses up a number before the store gets its own."""
    plain = StreamsBuilder().stream("in").group_by_key().count()
    with_serdes = StreamsBuilder().stream("in").group_by_key().count(store=Materialized(key_serde=Serdes.string()))
    assert plain.name == "KSTREAM-AGGREGATE-0000000002"
    assert with_serdes.name == "KSTREAM-AGGREGATE-0000000003"


def test_a_suffixed_name_can_become_too_long() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("a"), builder.table("b")
    with pytest.raises(TopologyError, match="longer than"):
        left.join(right, lambda one, other: one, name="x" * NAME_LENGTH_MAX)

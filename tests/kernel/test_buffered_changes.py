"""Buffered changes are those of plain dicts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel.buffered_changes import BufferedChanges, context_size, value_size
from penstock.topology.records import ProcessorRecordContext

CONTEXT = ProcessorRecordContext(1, 2, 3, "topic", [("ab", b"xyz"), ("c", None)], b"key", b"value")
PARTS = st.none() | st.binary(max_size=3)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "restore", "remove", "evict", "first", "until", "commit", "rollback"]),
        st.sampled_from([b"a", b"b", b"c"]),
        st.integers(0, 5),
        PARTS,
        PARTS,
    ),
    max_size=40,
)
Parts = tuple[int, Any, Any, Any]


class Model:
    """What the buffer is: (time, prior, old, new) by key."""

    def __init__(self) -> None:
        self.now: dict[bytes, Parts] = {}
        self.committed: dict[bytes, Parts] = {}
        self.dirty: dict[bytes, Parts | None] = {}

    def put(self, key: bytes, time: int, old: Any, new: Any) -> None:
        before = self.now.get(key, (time, old, None, None))
        self.now[key] = self.dirty[key] = (*before[:2], old, new)

    def first(self) -> bytes | None:
        return min(self.now, key=lambda key: (self.now[key][0], key), default=None)

    def size(self) -> int:
        return sum(8 + len(key) + value_size(*parts[1:], CONTEXT) for key, parts in self.now.items())


def parts_of(change: Any) -> Any:
    return change and (change.time, change.prior, change.old, change.new)


@given(steps=STEPS)
def test_they_are_those_of_a_dict(steps: list[tuple[str, bytes, int, Any, Any]]) -> None:
    changes, model = BufferedChanges(), Model()
    for action, key, time, old, new in steps:
        first = model.first()
        if action == "put":
            changes.put(key, time, old, new, CONTEXT)
            model.put(key, time, old, new)
        elif action == "restore":
            changes.restore(key, time, new, old, new, CONTEXT)
            model.now[key] = (time, new, old, new)
        elif action == "remove":
            changes.remove(key)
            model.now.pop(key, None)
        elif action == "evict":
            changes.evict(key)
            model.now.pop(key, None)
            model.dirty[key] = None
        elif action == "first":
            found = changes.first()
            assert (found and found[0]) == first
        elif action == "until":
            found = changes.first_until(time)
            assert (found and found[0]) == (first if first is not None and model.now[first][0] <= time else None)
        elif action == "commit":
            changes.commit()
            model.committed = dict(model.now)
        else:
            changes.rollback()
            model.now, model.dirty = dict(model.committed), {}
        assert {key: parts_of(changes.get(key)) for key in (b"a", b"b", b"c") if changes.get(key)} == model.now
        assert {key: parts_of(change) for key, change in changes.dirty.items()} == model.dirty
        assert (len(changes), changes.size) == (len(model.now), model.size())
    changes.clear()
    assert (len(changes), changes.size, changes.dirty, changes.first()) == (0, 0, {}, None)


def test_sizes_are_those_that_kafka_streams_counts() -> None:
    assert context_size(CONTEXT) == 8 + 8 + 5 + 4 + 6
    assert context_size(ProcessorRecordContext(1, -1, -1, None, None)) == 8 + 8 + 4
    assert value_size(b"12", b"12", b"345", CONTEXT) == 2 + 3 + context_size(CONTEXT)
    assert value_size(b"12", b"1", None, CONTEXT) == 2 + 1 + context_size(CONTEXT)


def test_a_context_is_a_named_tuple() -> None:
    wrong: Any = ["context"]
    with pytest.raises(TypeError):
        context_size(wrong)

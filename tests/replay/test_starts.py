"""Where a replay begins: the nearest checkpoint that fits, else the beginning, else an error. Each refusal says why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from penstock import Serdes, StreamsBuilder, Topology
from penstock.replay.cluster_topics import Bounds
from penstock.replay.replayed_task import replayed_tasks
from penstock.replay.starts import Start, StartFacts, Wanted, starts
from penstock.statestore.checkpoints.manifest import InputPosition, Manifest, StoredStore
from penstock.statestore.checkpoints.task_checkpoints import Found
from penstock.supervisor.source.topology_gate import plain_facts
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition
from tests.replay.replayed import CONFIG, TASK, TEXT, counting

IN = TopicPartition("in", 0)
ID = "0b" * 16


def counting_bytes() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.bytes(), value_serde=TEXT)
    stream.group_by_key().count(store="counts")
    stream.group_by_key().count(store="windows")
    return builder.build()


def stateless() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=TEXT, value_serde=TEXT).to("out", key_serde=TEXT, value_serde=TEXT)
    return builder.build()


class Choice:
    """The starts of a task, for its checkpoints, its input and the record before which it must begin."""

    def __init__(self, topology: Topology, first: int = 0, end: int = 1_000) -> None:
        self.task = replayed_tasks(topology, CONFIG, {"in": 1, "out": 1})[TASK]
        self.facts = StartFacts("app", plain_facts(topology, CONFIG), {"in": ID}, {IN: Bounds(first, end)})
        self.skipped: list[str] = []

    def manifest(self, offset: int, **changes: Any) -> Manifest:
        every = self.facts.stores
        facts = {"version": every["version"], "subtopologies": {}, "stores": every["stores"], "internal_topics": {}}
        stores = {name: StoredStore(f"app-{name}-changelog", "0a" * 16, 0, offset) for name in every["stores"]}
        made = Manifest(
            "app", "0_0", 1, 5_000 + offset, "1.0", "", facts, stores, (InputPosition("in", ID, 0, offset, 0),)
        )
        return replace(made, **changes)

    def starts(
        self, manifests: Iterable[Manifest | str], before: int | None = None, named: str | None = None
    ) -> list[Start]:
        found = [Found(each if isinstance(each, str) else each.name, 0.0, each) for each in manifests]
        wanted = Wanted(None if before is None else (IN, before), named)
        skipped = self.skipped
        return list(starts(self.task, found, wanted, self.facts, lambda name, reason: skipped.append(reason)))


def offsets(found: Iterable[Start]) -> list[tuple[int, bool]]:
    return [(each.offsets[IN], each.manifest is not None) for each in found]


def test_the_nearest_checkpoint_before_the_record_comes_first_and_the_beginning_last() -> None:
    choice = Choice(counting())
    manifests = [choice.manifest(offset) for offset in (300, 200, 100)]
    assert offsets(choice.starts(manifests, 250)) == [(200, True), (100, True), (0, False)]
    assert offsets(choice.starts(manifests, 200)) == [(200, True), (100, True), (0, False)]
    assert offsets(choice.starts(manifests, 199)) == [(100, True), (0, False)]
    assert not choice.skipped


def test_a_named_checkpoint_is_the_only_start() -> None:
    choice = Choice(counting())
    manifests = [choice.manifest(offset) for offset in (300, 200, 100)]
    named = manifests[2].name
    found = starts(
        choice.task, [Found(each.name, 0.0, each) for each in manifests], Wanted((IN, 250), named), choice.facts, print
    )
    assert next(found).offsets[IN] == 100
    with pytest.raises(StreamsError, match=r"Task 0_0 has no checkpoint none\.json that can be used"):
        choice.starts(manifests, 250, "none.json")
    with pytest.raises(StreamsError, match="has no checkpoint"):
        choice.starts(manifests, 250, manifests[0].name)
    assert choice.skipped == ["it was taken after the record"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"application_id": "other"}, "it belongs to the application other"),
        ({"store_format": "rocksdb-2"}, "its stores have the format rocksdb-2, not rocksdb-1"),
        ({"stores": {}}, "it does not have the state of counts, windows, which is not on disk or is new"),
        ({"inputs": (InputPosition("in", "0c" * 16, 0, 5, 0),)}, "the input in was deleted and created again since"),
        (
            {"inputs": (InputPosition("in", ID, 0, 2_000, 0),)},
            "it ends at offset 2000 of in-0, which has the offsets 0 to 1000",
        ),
        ({"inputs": (InputPosition("gone", ID, 0, 5, 0),)}, "it has read gone-0, which is no input of the task"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_skipped_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    choice = Choice(counting())
    assert offsets(choice.starts([choice.manifest(100, **changes), "its checksum is wrong"])) == [(0, False)]
    assert choice.skipped == [reason, "its checksum is wrong"]


def test_a_checkpoint_of_another_version_of_the_stores_is_skipped() -> None:
    choice, other = Choice(counting()), Choice(counting_bytes())
    assert offsets(choice.starts([other.manifest(100)])) == [(0, False)]
    assert choice.skipped[0].startswith("it is from another version of the topology: counts: ")


def test_an_input_without_its_first_records_needs_a_checkpoint() -> None:
    choice = Choice(counting(), first=50)
    assert offsets(starts_until_error(choice, [choice.manifest(100)])) == [(100, True)]
    with pytest.raises(StreamsError, match="its input in-0 begins at offset 50: earlier records were deleted"):
        choice.starts([choice.manifest(40)])
    assert choice.skipped == ["it ends at offset 40 of in-0, which has the offsets 50 to 1000"]


def starts_until_error(choice: Choice, manifests: list[Manifest]) -> list[Start]:
    found = starts(
        choice.task, [Found(each.name, 0.0, each) for each in manifests], Wanted(), choice.facts, lambda *_: None
    )
    return [next(found)]


def test_a_task_without_state_begins_at_the_record_then_at_its_first_one() -> None:
    choice = Choice(stateless(), first=50)
    assert offsets(choice.starts([], 250)) == [(250, False), (50, False)]
    assert offsets(choice.starts([])) == [(50, False)]


def test_a_start_describes_itself() -> None:
    choice = Choice(counting())
    manifest = choice.manifest(100)
    assert [str(each) for each in choice.starts([manifest])] == [
        f"checkpoint {manifest.name}: offset 100 of in-0",
        "the beginning of its input: offset 0 of in-0",
    ]

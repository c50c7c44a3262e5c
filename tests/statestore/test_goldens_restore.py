"""Stores restored from Kafka Streams' changelogs have the final rows of Kafka Streams."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord
from tests.goldens import interpreter
from tests.goldens.compare import Run, case_config
from tests.statestore.support import OpenStore

CASES = Path(__file__).parent.parent / "goldens" / "cases"


def read_cases() -> Iterator[dict[str, Any]]:
    """Yield the cases without a cache, which shows rows that its store hides, and without stores that forget rows."""
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        uncached = case["config"].get("statestore.cache.max.bytes") == "0"
        if uncached and case["stores"] and case["changelogs"] and "lru" not in path.stem:
            yield case


def restored(case: dict[str, Any], builder: StoreBuilder, records: list[dict[str, Any]]) -> OpenStore:
    open_store = OpenStore(builder)
    changelog = [
        RawRecord("changelog", 0, at, record["timestamp"], b64decode(record["key_b64"]), data(record["value_b64"]))
        for at, record in enumerate(records)
    ]
    open_store.task.changelog.extend(changelog)
    open_store.restore_missing()
    return open_store


def data(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


class Restored:
    """The part of a driver that Run uses."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def get_state_store(self, name: str) -> Any:
        return self.store


def test_restored_stores_have_kafka_streams_rows() -> None:
    kinds: set[StoreKind] = set()
    compared = 0
    for case in read_cases():
        topology = build_whole_topology(interpreter.build(case).internal_builder, StreamsConfig(case_config(case)))
        run = Run(case)
        run.topics = case["changelogs"]
        for name, rows in case["stores"].items():
            records = case["changelogs"].get(f"{run.prefix}{topology.changelog_topics.get(name)}")
            if records is None:
                continue
            store = restored(case, topology.stores[name], records).store
            assert list(run._rows(Restored(store), name)) == rows, f"{case['name']}: {name}"  # type: ignore[arg-type]
            kinds.add(store.builder.kind)
            compared += 1
    assert compared > 60
    assert kinds == {
        StoreKind.KEY_VALUE,
        StoreKind.TIMESTAMPED_KEY_VALUE,
        StoreKind.VERSIONED_KEY_VALUE,
        StoreKind.WINDOW,
        StoreKind.TIMESTAMPED_WINDOW,
        StoreKind.SESSION,
    }

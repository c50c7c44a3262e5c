"""Aggregates of penstock.agg in two stream threads on a real broker: results, queries, and the restore of states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from broker_stage import PARTITIONS, Counting, shared_by

from penstock import Serdes, StreamsBuilder, agg
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
PATIENCE = timedelta(seconds=PATIENCE_SECONDS)
AGGREGATES = {"n": agg.count(), "size": agg.mean(len), "last": agg.last()}


class Aggregating(Counting):
    """Keeps a row of aggregates for each key."""

    def topology(self) -> Any:
        builder = StreamsBuilder()
        stream = builder.stream(self.source, key_serde=Serdes.string(), value_serde=Serdes.string())
        rows = stream.group_by_key().aggregate(AGGREGATES, store="rows")
        rows.to_stream().to(self.sink, key_serde=Serdes.string(), value_serde=Serdes.json())
        return builder.build()

    def counted(self) -> dict[str, int]:
        found = {}
        for message in read_to_end(self.bootstrap_servers, self.sink):
            row = json.loads(message.value() or b"")
            assert row == {"n": row["n"], "size": 1.0, "last": "x"}
            found[(message.key() or b"").decode()] = row["n"]
        return found


def test_results_are_sent_queried_and_restored(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, sink = make_topic("in", PARTITIONS), make_topic("out", PARTITIONS)
    app = Aggregating(bootstrap_servers, application_id, source, sink, tmp_path / "state")
    app.produce(5)
    with app.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        app.wait_for_all_counts()
        rows = streams.store("rows", timeout=PATIENCE)
        assert rows.get("key-7") == {"n": 5, "size": 1.0, "last": "x"}
        assert {key: row["n"] for key, row in rows.all()} == app.expected
        streams.close(leave_group=True)  # the id of its process is in the state directory
    shutil.rmtree(tmp_path / "state")
    app.produce(1)
    with app.streams(1) as again:  # it restores the states from the changelog
        again.start()
        app.wait_for_all_counts()

"""Asynchronous functions in real stream threads on a real broker: records stay in order, and a kill loses none."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import pytest
from broker_stage import Counting

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.supervisor.exit_codes import ExitCode
from tests.read_to_end import read_to_end
from tests.waiting import eventually

pytestmark = pytest.mark.broker

#: The duration of a call, and the commit interval, which is shorter.
CALL_SECONDS, COMMIT_MS = 0.05, 200


async def answer(value: str) -> str:
    await asyncio.sleep(random.uniform(0, 2 * CALL_SECONDS))
    return value


class Asking(Counting):
    """Counts the results of a slow service."""

    def __init__(self, *arguments: Any, ordered_by: Literal["partition", "key"], **config: Any) -> None:
        super().__init__(*arguments)
        self.ordered_by = ordered_by
        self.config |= {"commit.interval.ms": COMMIT_MS, **config}

    def topology(self) -> Any:
        builder = StreamsBuilder()
        stream = builder.stream(self.source, key_serde=Serdes.string(), value_serde=Serdes.string())
        answered = stream.map_values_async(answer, ordered_by=self.ordered_by, max_in_flight=256)
        counts = answered.group_by_key(value_serde=Serdes.string()).count(store="counts")
        counts.to_stream().to(self.sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
        return builder.build()


@pytest.fixture
def asking(counting: Counting, tmp_path: Path, request: pytest.FixtureRequest) -> Asking:
    ordered_by, guarantee = request.param
    arguments = (counting.bootstrap_servers, counting.config["application.id"], counting.source, counting.sink)
    config = {"processing.guarantee": guarantee, "statestore.cache.max.bytes": 0}
    return Asking(*arguments, tmp_path, ordered_by=ordered_by, **config)


BOTH = pytest.mark.parametrize(
    "asking", [("partition", "at_least_once"), ("key", "exactly_once_v2")], indirect=True, ids=["partition", "key"]
)


@pytest.mark.slow
@BOTH
def test_calls_run_concurrently_and_records_keep_their_order(asking: Asking) -> None:
    asking.produce(50)
    with asking.streams(2) as streams:
        streams.start()
        wait_for_all(asking)
    assert streams.exit_code is ExitCode.OK
    for counts in results(asking).values():
        assert counts == list(range(1, 51)), "each record of a key counted once, in order"


@pytest.mark.slow
@pytest.mark.parametrize("asking", [("partition", "exactly_once_v2"), ("key", "exactly_once_v2")], indirect=True)
def test_kills_lose_and_duplicate_nothing(asking: Asking) -> None:
    with asking.streams(2) as streams:
        streams.start()
        for _ in range(4):
            before = number_of(results(asking))
            asking.produce(10)
            kill_one_that_works(streams, asking, before + 20)
        wait_for_all(asking)
    assert streams.exit_code is ExitCode.OK
    for counts in results(asking).values():
        assert counts == list(range(1, 41))


def wait_for_all(asking: Asking) -> None:
    def all_are_there() -> bool:
        return {key: max(counts) for key, counts in results(asking).items()} == asking.expected

    eventually(all_are_there, "the last count of each key is there")


def number_of(results: dict[str, list[int]]) -> int:
    return sum(map(len, results.values()))


def kill_one_that_works(streams: KafkaStreams, asking: Asking, some: int) -> None:
    """Kill a process while calls are pending: some results are written, others are not."""
    eventually(lambda: number_of(results(asking)) >= some, "some results are there")
    os.kill(streams.status()[0].pid, signal.SIGKILL)


def results(asking: Asking) -> dict[str, list[int]]:
    """Return the counts of each key, in the order in which they were written."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in read_to_end(asking.bootstrap_servers, asking.sink):
        found[(message.key() or b"").decode()].append(struct.unpack(">q", message.value() or b"")[0])
    return found

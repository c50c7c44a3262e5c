"""What may be missing while an application runs on Spark: room for its checkpoint, the checkpoint, an end offset."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.wire.exchange import Action, Exchange
from penstock.testing.wire.messages import decode_answer, decode_request, encode_answer
from penstock.testing.wire.proxy import WireProxy
from penstock.testing.wire.rules import Rule
from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from tests.chaos.machine import Control, Field, compile_shim, compiler
from tests.differential.application import Application
from tests.differential.kills import count_more, finish
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LATEST = -1


@pytest.fixture
def machine(tmp_path: Path) -> Control:
    """A disk for checkpoints that becomes full on demand."""
    if compiler() is None:
        pytest.skip("there is no C compiler")
    return Control(compile_shim(tmp_path / "shim"), tmp_path, tmp_path / "checkpoint")


@pytest.fixture
def application(bootstrap_servers: str, tmp_path: Path, machine: Control) -> Iterator[Application]:
    found = Application(bootstrap_servers, tmp_path, environment=machine.environment, guarantee=EXACTLY_ONCE_V2)
    with found.topics():
        yield found


def last_words(application: Application) -> str:
    return application.log.read_text().splitlines()[-1]


def test_a_full_disk_below_the_checkpoint_ends_it_and_costs_nothing(application: Application, machine: Control) -> None:
    with application.running() as process:
        count_more(application)
        machine[Field.DISK_ERRNO] = errno.ENOSPC
        application.produce()
        assert process.wait(PATIENCE_SECONDS) == 1
    assert "No space left on device" in last_words(application)
    assert "Make room" in last_words(application)
    machine[Field.DISK_ERRNO] = 0
    with application.running() as process:
        application.await_counts()
        finish(application, process)


def test_a_checkpoint_that_is_gone_ends_it_and_one_that_is_back_continues(application: Application) -> None:
    elsewhere = application.checkpoint.with_name("elsewhere")
    with application.running() as process:
        count_more(application)
        application.checkpoint.rename(elsewhere)
        application.produce()
        assert process.wait(PATIENCE_SECONDS) == 1
    assert str(application.checkpoint) in last_words(application)
    application.remove_checkpoint()  # what Spark has made in its place
    elsewhere.rename(application.checkpoint)
    with application.running() as process:
        application.await_counts()
        finish(application, process)


class OlderEnds(Action):
    """A new leader that does not know yet how far its partitions are committed (SPARK-26267)."""

    def __init__(self) -> None:
        self.left = 0

    async def on_answer(self, exchange: Exchange, answer: bytes) -> None:
        asked: Any = decode_request(exchange.request)
        if self.left and all(p.timestamp == LATEST for topic in asked.topics for p in topic.partitions):
            self.left -= 1
            found = decode_answer(exchange.request, answer)
            answer = encode_answer(exchange.request, replace(found, topics=tuple(map(older, found.topics))))
        await exchange.give(answer)


def older(topic: Any) -> Any:
    return replace(topic, partitions=tuple(replace(part, offset=part.offset // 2) for part in topic.partitions))


def test_older_end_offsets_after_a_leader_change_repeat_nothing(bootstrap_servers: str, tmp_path: Path) -> None:
    ends = OlderEnds()
    with WireProxy(bootstrap_servers, [Rule(ends, api="ListOffsets")]) as proxy:
        application = Application(proxy.bootstrap_servers, tmp_path, guarantee=EXACTLY_ONCE_V2)
        with application.topics(), application.running() as process:
            count_more(application)
            ends.left = 6
            eventually(lambda: ends.left == 0, application.log.read_text)
            count_more(application)
            finish(application, process)

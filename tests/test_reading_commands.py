"""Commands that read topics whose leaders do not serve them yet, as after a start or when a leader has moved."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from penstock.cli import cli
from penstock.testing import EmbeddedKafka
from penstock.testing.wire import Fail, Rule
from tests.waiting import PATIENCE_SECONDS

#: A source, as the application writes it into the headers of a dead letter.
SOURCE = {"topic": "in", "partition": "0", "offset": "0"}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A topic with a record, and its dead letter. Each leader refuses the first question for offsets."""
    with EmbeddedKafka(topics={"in": 1, "dead": 1}, rules=()) as made:
        headers: list[tuple[str, str | bytes | None]] = [
            (f"__streams.errors.{name}", at) for name, at in SOURCE.items()
        ]
        producer = Producer({"bootstrap.servers": made.bootstrap_servers})
        producer.produce("in", '"value"', "key")
        producer.produce("dead", "value", "key", headers=headers)
        assert producer.flush(PATIENCE_SECONDS) == 0
        made.set_rules([Rule(Fail("NOT_LEADER_OR_FOLLOWER"), api="ListOffsets", times=1)])
        yield made


def run(kafka: EmbeddedKafka, *arguments: str) -> Result:
    servers = ("-c", f"bootstrap.servers={kafka.bootstrap_servers}", "-c", "application.id=app")
    result = CliRunner(env={"PENSTOCK_CONFIG": None}).invoke(cli, [*arguments, *servers], prog_name="penstock")
    assert result.exit_code == 0, result.output
    assert [event.api for event in kafka.events if event.api == "ListOffsets"] == ["ListOffsets"]
    return result


@pytest.mark.parametrize("options", [(), ("--since", "1h")], ids=["all", "since"])
def test_a_topic_is_read(kafka: EmbeddedKafka, options: tuple[str, ...]) -> None:
    assert run(kafka, "topic", "consume", "in", *options).stdout == "key\tvalue\n"


def test_dead_letters_are_listed(kafka: EmbeddedKafka) -> None:
    (row,) = json.loads(run(kafka, "dlq", "list", "--topic", "dead", "--json").stdout)
    assert row["source"] == "in-0@0"


def test_dead_letters_are_replayed(kafka: EmbeddedKafka) -> None:
    """With a topic for markers that is new."""
    run(kafka, "dlq", "replay", "--all", "--topic", "dead", "--execute")
    assert [record.value for record in kafka.records("in")] == [b'"value"', b"value"]

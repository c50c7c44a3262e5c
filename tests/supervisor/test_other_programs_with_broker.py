"""A program other than Kafka Streams with the same group id: the newcomer is refused, and the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from broker_stage import PARTITIONS, Counting, shared_by
from confluent_kafka import Consumer, KafkaError
from stage import LogLines

from penstock.cli.plan import with_group as with_group
from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.config.streams_config import StreamsConfig
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class OtherProgram:
    """A plain consumer of the application's source that uses the application's id as its group id."""

    def __init__(self, counting: Counting, protocol: str) -> None:
        self.errors: list[KafkaError] = []
        self.assigned = 0
        self.revoked = 0
        self.read = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": counting.bootstrap_servers,
                "group.id": counting.config["application.id"],
                "group.protocol": protocol,
                "client.id": "other-program",
                "auto.offset.reset": "earliest",
                "error_cb": self.errors.append,
            }
        )
        self._consumer.subscribe([counting.source], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _: Consumer, partitions: list[Any]) -> None:
        self.assigned += len(partitions)

    def _on_revoke(self, _: Consumer, partitions: list[Any]) -> None:
        self.revoked += len(partitions)

    def poll(self) -> None:
        for message in self._consumer.consume(100, timeout=0.1):
            error = message.error()
            if error is None:
                self.read += 1
            else:
                self.errors.append(error)

    def poll_until(self, check: Callable[[], bool], what: str) -> None:
        """Continue reading until the condition holds."""

        def is_so() -> bool:
            self.poll()
            return check()

        eventually(is_so, what)

    def read_all(self, counting: Counting) -> None:
        """Read until all records of the source have arrived."""
        self.poll_until(lambda: self.read >= sum(counting.expected.values()), "the other program reads everything")

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def programs() -> Iterator[list[OtherProgram]]:
    made: list[OtherProgram] = []
    yield made
    for program in made:
        program.close()


@pytest.mark.parametrize(
    ("protocol", "other"), [("classic", "classic"), ("classic", "consumer"), ("streams", "consumer")]
)
def test_a_group_of_another_program_is_not_joined(
    counting: Counting, log: LogLines, programs: list[OtherProgram], protocol: str, other: str
) -> None:
    counting.produce(1)
    program = OtherProgram(counting, other)
    programs.append(program)
    program.read_all(counting)
    counting.config["group.protocol"] = protocol
    with counting.streams(1) as streams:
        streams.start()
        program.poll_until(lambda: streams.state is State.ERROR, "Penstock ends")
    assert streams.exit_code is ExitCode.FAILED
    assert str(counting.config["application.id"]) in log.text
    assert "or choose another application.id" in log.text
    counting.produce(1)
    program.read_all(counting)
    assert (program.assigned, program.revoked, program.errors) == (PARTITIONS, 0, [])


def test_plan_reports_that_the_group_belongs_to_another_program(
    counting: Counting, programs: list[OtherProgram]
) -> None:
    counting.produce(1)
    program = OtherProgram(counting, "consumer")
    programs.append(program)
    program.read_all(counting)
    (compared,) = with_group(StreamsConfig(counting.config), {})
    assert compared.plan is None
    assert compared.what.endswith("is a consumer group: its members are no Kafka Streams application")


@pytest.mark.parametrize(("protocol", "other"), [("classic", "consumer"), ("streams", "classic")])
def test_another_program_cannot_join_the_group(
    counting: Counting, programs: list[OtherProgram], protocol: str, other: str
) -> None:
    counting.config["group.protocol"] = protocol
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "all tasks run")
        program = OtherProgram(counting, other)
        programs.append(program)
        program.poll_until(lambda: bool(program.errors), "it is refused")
        counting.produce(1)
        counting.wait_for_all_counts()
        assert shared_by(streams, 1)
        assert streams.status()[0].restarts == 0
    assert (program.assigned, program.read) == (0, 0)
    assert streams.exit_code is ExitCode.OK

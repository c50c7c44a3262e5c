"""Leaders and coordinators that die, and logs that lose their ends in an unclean election."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.application import Application, wait_for_values
from tests.clients.conftest import MakeApplication
from tests.clients.trio import FIRST, SECOND, START_SECONDS, STAYS, Trio, trio
from tests.waiting import eventually

#: Three brokers are started first.
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE, SINK = "in", "out"
MakeTrio = Callable[..., Trio]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Trio]:
    """Three brokers; the one that stays is the coordinator and has the sink."""
    with trio(tmp_path, [STAYS]) as made:
        made.topics.create(SINK, replicas=[STAYS])
        yield made


def numbered(what: str, count: int) -> list[str]:
    return [f"0 {what} {number}" for number in range(count)]


def test_offsets_are_reset_at_the_new_leader_when_records_were_deleted(brokers: Trio, run: MakeApplication) -> None:
    topics = brokers.topics
    topics.create(SOURCE, replicas=[FIRST, SECOND])
    topics.write(SOURCE, ["12 slow"])
    application = run("slow", SOURCE, SINK, brokers.topics.bootstrap_servers, auto_offset_reset="earliest")
    application.wait_until_begun("12 slow")
    brokers.brokers[FIRST].kill()
    topics.wait_for_leader(SOURCE, SECOND, in_sync=1)
    written = numbered("after", 100)
    topics.write(SOURCE, written)
    topics.delete_records(SOURCE, before=51)
    wait_for_values(application, topics, SINK, ["12 slow", *written[50:]], 40)


def test_an_unclean_election_that_cuts_what_was_read_is_followed_by_what_is_new(
    brokers: Trio, run: MakeApplication
) -> None:
    topics = brokers.topics
    application, old = with_an_end_that_only_the_first_has(brokers, run)
    elect_the_second(brokers)
    new = numbered("new", 100)
    topics.write(SOURCE, new)
    wait_for_values(application, topics, SINK, [*old, *new], 60)


def test_what_is_new_after_an_unclean_election_is_not_skipped_by_an_application_that_was_stopped(
    brokers: Trio, run: MakeApplication
) -> None:
    topics = brokers.topics
    application, old = with_an_end_that_only_the_first_has(brokers, run)
    eventually(lambda: topics.committed(application.application_id, SOURCE).offset == len(old), "all is committed")
    assert application.stop() == 0
    elect_the_second(brokers)
    new = numbered("new", 100)
    topics.write(SOURCE, new)
    wait_for_values(application.start(), topics, SINK, [*old, *new], 40)


def with_an_end_that_only_the_first_has(brokers: Trio, run: MakeApplication) -> tuple[Application, list[str]]:
    """Return an application that has copied all of the source, whose last 50 records the second broker lacks."""
    topics = brokers.topics
    topics.create(SOURCE, replicas=[FIRST, SECOND])
    topics.wait_for_leader(SOURCE, FIRST, in_sync=2)
    both, first = numbered("both", 100), numbered("first only", 50)
    topics.write(SOURCE, both)
    brokers.brokers[SECOND].kill()
    topics.wait_for_leader(SOURCE, FIRST, in_sync=1)
    topics.write(SOURCE, first)
    application = run("copy", SOURCE, SINK, brokers.topics.bootstrap_servers, auto_offset_reset="earliest")
    wait_for_values(application, topics, SINK, both + first, 60)
    return application, both + first


def elect_the_second(brokers: Trio) -> None:
    """Kill the leader; the broker that comes back leads without the end of the log."""
    brokers.brokers[FIRST].kill()
    brokers.brokers[SECOND].start(START_SECONDS, detached=False)
    brokers.topics.wait_for_leader(SOURCE, SECOND, in_sync=1)


def test_offsets_are_committed_when_the_only_bootstrap_broker_is_gone_for_good(
    tmp_path: Path, run: MakeApplication
) -> None:
    with trio(tmp_path, coordinators=[FIRST, STAYS]) as brokers:
        topics = brokers.topics
        topics.create(SOURCE, replicas=[STAYS])
        topics.create(SINK, replicas=[STAYS])
        bootstrap_servers = brokers.brokers[FIRST].bootstrap_servers
        before, after = numbered("before", 10), numbered("after", 10)
        topics.write(SOURCE, before)
        application = run("copy", SOURCE, SINK, bootstrap_servers, auto_offset_reset="earliest", task_timeout_ms=10_000)
        wait_for_values(application, topics, SINK, before, 60)
        brokers.brokers[FIRST].kill()
        topics.write(SOURCE, after)
        wait_for_values(application, topics, SINK, before + after, 40)
        eventually(
            lambda: topics.committed(application.application_id, SOURCE).offset == 20 or bool(application.exit_code),
            lambda: f"committed: {topics.committed(application.application_id, SOURCE).offset}",
            40,
        )
        assert application.exit_code is None, application.log[-4000:]

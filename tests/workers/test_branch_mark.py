"""What a stream thread does with the offsets of a branch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.errors import BranchError
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.branch_mark import BranchMark, BranchState, branch_marks, branch_states, marked
from penstock.workers.tasks.topic_partition_metadata import BRANCH_MARK, MAX_BYTES, TopicPartitionMetadata
from tests.direct_kafka import DirectKafka
from tests.workers.counting import CHANGELOG, IN, OUT, committed, counting, counts, feed
from tests.workers.thread_stage import Application

MakeApplication = Callable[..., Application]


@pytest.fixture(params=["at_least_once", "exactly_once_v2"])
def guarantee(cluster: DirectKafka, request: pytest.FixtureRequest) -> str:
    for topic in (IN, CHANGELOG, OUT, f"next.{OUT}"):
        cluster.create_topic(topic, 1)
    feed(cluster, "aab")
    found: str = request.param
    return found


def mark(cluster: DirectKafka, state: BranchState) -> None:
    cluster.commit(TopicPartition(IN, 0), 1, TopicPartitionMetadata(1000, {BRANCH_MARK: state}).encode())


def test_an_unfinished_branch_is_refused(guarantee: str, cluster: DirectKafka, application: MakeApplication) -> None:
    mark(cluster, BranchState.UNFINISHED)
    thread = application(counting(), processing_guarantee=guarantee, penstock_sink_prefix="next.").thread()
    with pytest.raises(BranchError, match="The branch app is not complete: `penstock branch create app`"):
        thread.until_running()


def test_a_branch_does_not_run_without_a_prefix(
    guarantee: str, cluster: DirectKafka, application: MakeApplication
) -> None:
    mark(cluster, BranchState.SHADOW)
    with pytest.raises(BranchError, match=r"Give them a prefix: -c penstock\.sink\.prefix=app\."):
        application(counting(), processing_guarantee=guarantee).thread().until_running()


def test_a_branch_keeps_its_mark_with_every_commit(
    guarantee: str, cluster: DirectKafka, application: MakeApplication
) -> None:
    mark(cluster, BranchState.SHADOW)
    thread = application(counting(), processing_guarantee=guarantee, penstock_sink_prefix="next.").thread().until_idle()
    thread.commit()
    found = committed(cluster)
    assert found is not None
    assert (found.offset, branch_states([found])) == (3, {BranchState.SHADOW})
    assert counts(cluster, f"next.{OUT}") == {"a": 1, "b": 1}
    assert counts(cluster) == {}


def test_an_application_in_an_exchange_does_not_run(
    guarantee: str, cluster: DirectKafka, application: MakeApplication
) -> None:
    mark(cluster, BranchState.HALTED)
    thread = application(counting(), processing_guarantee=guarantee).thread()
    with pytest.raises(BranchError, match="`rollback` was interrupted, or has not ended yet"):
        thread.until_running()


def test_the_writer_of_the_real_outputs_does_not_run_with_a_prefix(
    guarantee: str, cluster: DirectKafka, application: MakeApplication
) -> None:
    mark(cluster, BranchState.WRITER)
    with pytest.raises(BranchError, match=r"has penstock\.sink\.prefix=next\.: its records would be missing there"):
        application(counting(), processing_guarantee=guarantee, penstock_sink_prefix="next.").thread().until_running()


def test_the_writer_of_the_real_outputs_runs_without_a_prefix(
    guarantee: str, cluster: DirectKafka, application: MakeApplication
) -> None:
    mark(cluster, BranchState.WRITER)
    application(counting(), processing_guarantee=guarantee).thread().until_idle().commit()
    assert counts(cluster) == {"a": 1, "b": 1}


def test_a_mark_is_changed_and_the_rest_of_the_metadata_stays() -> None:
    before = TopicPartitionMetadata(1000, {"window": 7, BRANCH_MARK: BranchState.SHADOW})
    after = TopicPartitionMetadata.decode(marked(before.encode(), BranchMark(BranchState.HALTED, 42)))
    assert after == TopicPartitionMetadata(
        1000, {"window": 7, BRANCH_MARK: BranchState.HALTED, "penstock exchange": 42}
    )


def test_a_mark_is_kept_if_the_times_of_operators_are_too_long() -> None:
    """Without it the branch would write to the topics of its original."""
    random = Random(1)
    times = {random.randbytes(16).hex(): random.getrandbits(62) for _ in range(400)}
    text = TopicPartitionMetadata(1000, {**times, BRANCH_MARK: BranchState.SHADOW, "penstock exchange": 42}).encode()
    assert len(text) <= MAX_BYTES
    assert branch_marks([OffsetAndMetadata(3, text)]) == {BranchMark(BranchState.SHADOW, 42)}

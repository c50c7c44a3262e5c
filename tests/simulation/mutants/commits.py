"""Mutants of the commit: which data becomes permanent, and in which order."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from penstock.clients.group import group_member, offsets
from penstock.clients.protocol.offset_commits import GroupMetadata
from penstock.statestore.stores.removals import Removals
from penstock.statestore.stores.state_store import StateStore
from penstock.topology.operators.waiting import Waiting
from penstock.topology.run.event_loop import LoopCalls
from penstock.workers.tasks.committer import AtLeastOnceCommit, Commit, ExactlyOnceCommit
from penstock.workers.tasks.processor_state_manager import ProcessorStateManager
from penstock.workers.tasks.record_sends import ProducerOutput
from penstock.workers.tasks.stream_task import StreamTask
from penstock.workers.tasks.streams_producer import StreamsProducer
from tests.simulation.mutants.mutant import Mutant


def commit_before_flush(original: Any) -> Any:
    def prepare_commit(task: StreamTask) -> Any:
        flush = task.state_manager.flush
        task.state_manager.flush = lambda *_: None  # type: ignore[method-assign]
        try:
            return original(task)
        finally:
            task.state_manager.flush = flush  # type: ignore[method-assign]

    return prepare_commit


def offset_ahead_of_data(_: Any) -> Any:
    """The changelog's end is requested when other processes may own it already. Penstock once did this."""

    def make_permanent(commit: Commit) -> None:
        commit.producer.flush()
        commit.commit_stores(commit.changelog_ends())
        if commit.offsets:
            commit.membership.commit(commit.offsets)

    return make_permanent


def tombstone_before_what_was_sent_on(_: Any) -> Any:
    """Brokers have the tombstone, but not the record that its row held until then. Penstock once did this.

    The buffer writes the tombstone at a commit. By then brokers have the record, too, unless its connection was lost.
    """

    def add(removals: Removals, row_key: bytes, timestamp: int | None) -> None:
        removals._store.task.output.log_change(removals._store.name, row_key, None, timestamp)

    return add


def offset_without_data(original: Any) -> Any:
    def commit(store: StateStore, changelog_offset: int | None) -> None:
        store.rows.rollback()
        original(store, changelog_offset)

    return commit


def offsets_of_open_transactions(original: Any) -> Any:
    """A new owner starts at offsets that a suspended process's open transaction is about to replace (KIP-447)."""

    def offset_fetch(*arguments: Any) -> Any:
        request = original(*arguments)
        return replace(request, body={**request.body, "require_stable": False})

    return offset_fetch


def no_flush(_: Any) -> Any:
    return lambda producer: producer.collector.check()


def missing_fence(_: Any) -> Any:
    """The offsets of a transaction are sent without the group's metadata."""
    return lambda group_id, *_: GroupMetadata(group_id)


def outside_of_the_transaction(_: Any) -> Any:
    """The first record after a commit does not begin the next transaction."""

    def write(output: ProducerOutput, topic: str, key: Any, value: Any, partition: int, at: Any, headers: Any) -> None:
        output.producer.produce(topic, key, value, partition, at, list(headers) if headers else None, None)

    return write


def stores_before_the_transaction(_: Any) -> Any:
    def make_permanent(commit: Commit) -> None:
        ends = commit.changelog_ends()
        commit.commit_stores(ends)
        commit.producer.commit_transaction(commit.offsets, commit.membership.group_metadata())

    return make_permanent


def offsets_before_stores_are_flushed(_: Any) -> Any:
    """Consumed offsets are committed before the records that follow from them are acknowledged."""

    def make_permanent(commit: Commit) -> None:
        if commit.offsets:
            commit.membership.commit(commit.offsets)
        commit.commit_stores(commit.changelog_ends())

    return make_permanent


def offset_of_the_record_itself(original: Any) -> Any:
    """Commits the offset of the last record instead of the next one."""

    def next_offsets(task: StreamTask) -> Any:
        return {partition: max(offset - 1, 0) for partition, offset in original(task).items()}

    return next_offsets


def offset_of_what_was_read(original: Any) -> Any:
    """Commits the fetched position instead of the processed one."""

    def next_offsets(task: StreamTask) -> Any:
        positions = {p: task._clients.consumer.position(p) for p in original(task)}
        return {partition: offset for partition, offset in positions.items() if offset is not None}

    return next_offsets


def store_forgotten(original: Any) -> Any:
    """The uncommitted rows of one of two stores survive when their task is closed."""

    def close(store: StateStore) -> None:
        if store.name == "counts" and store.rows.has_uncommitted():
            store.rows.commit(None)
        original(store)

    return close


def work_without_input_not_fenced(original: Any) -> Any:
    """Only changed offsets are committed: without any, a suspended process does not learn that it was removed.

    Penstock once did this.
    """

    def prepare_commit(task: StreamTask) -> Any:
        offsets = original(task)
        return {p: at for p, at in offsets.items() if at.offset != task._committed.get(p)}

    return prepare_commit


def kept_after_unclean_close(original: Any) -> Any:
    """A task that is closed dirty leaves its uncommitted rows on disk."""

    def close(manager: ProcessorStateManager) -> None:
        for store in manager.stores.values():
            store.commit(None)
        original(manager)

    return close


def started_before_acknowledgements(_: Any) -> Any:
    """The offset commit is sent before the records that follow from the offsets are acknowledged."""

    def start(commit: AtLeastOnceCommit) -> bool:
        if not commit.offsets or commit.wants_ends:
            return Commit.start(commit)
        commit._answer = commit.membership.commit_async(commit.offsets)
        return False

    return start


def ends_insisted_on(_: Any) -> Any:
    """A task that leaves is not committed if no broker returns the ends of its changelogs. Penstock once did this."""

    def changelog_ends(commit: Commit) -> Any:
        commit.producer.flush()
        written = {partition for task in commit.tasks for partition in task.state_manager.written_changelogs}
        return commit.end_offsets(written) if commit.wants_ends else {}

    return changelog_ends


def in_flight_committed(_: Any) -> Any:
    """Records with a pending function are committed as if their results were written."""
    return lambda waiting: {}


def overtaken_left_behind(_: Any) -> Any:
    """A commit does not wait for calls by key: results written after a pending one will be written again."""
    return staticmethod(lambda operator: operator.replayable)


def no_timeout(_: Any) -> Any:
    """A call without a response is waited for indefinitely: everything behind it is stuck."""
    return lambda calls, seconds, call: nullcontext()


TICK_AIMS = ("flush producer", "commit transaction")
COMMIT_MUTANTS = (
    Mutant("commit before flush", StreamTask, "prepare_commit", commit_before_flush, 1),
    Mutant("offset ahead of data", AtLeastOnceCommit, "make_permanent", offset_ahead_of_data, 37, ("list offsets",)),
    Mutant(
        "tombstone before what was sent on",
        Removals,
        "add",
        tombstone_before_what_was_sent_on,
        195722,
        ("kill at connect",),
        plain=False,
    ),
    Mutant("changelog offset stored without data", StateStore, "commit", offset_without_data, 1),
    Mutant("open transaction not waited for", offsets, "offset_fetch", offsets_of_open_transactions, 3),
    Mutant("records not waited for", StreamsProducer, "flush", no_flush, 78),
    Mutant("missing fence", group_member, "GroupMetadata", missing_fence, 109, ("send offsets", "flush producer")),
    Mutant("output outside of the transaction", ProducerOutput, "_write", outside_of_the_transaction, 1),
    Mutant("stores before the transaction", ExactlyOnceCommit, "make_permanent", stores_before_the_transaction, 71),
    Mutant(
        "offsets before acknowledgements", AtLeastOnceCommit, "make_permanent", offsets_before_stores_are_flushed, 54
    ),
    Mutant("started before acknowledgements", AtLeastOnceCommit, "start", started_before_acknowledgements, 0),
    Mutant("ends of changelogs insisted on", Commit, "changelog_ends", ends_insisted_on, 7367),
    Mutant("committed offset one too low", StreamTask, "_next_offsets", offset_of_the_record_itself, 0),
    Mutant("committed what was only read", StreamTask, "_next_offsets", offset_of_what_was_read, 2),
    Mutant(
        "work without input not fenced", StreamTask, "prepare_commit", work_without_input_not_fenced, 2374, TICK_AIMS
    ),
    Mutant("rollback forgets a store", StateStore, "close", store_forgotten, 1),
    Mutant("state kept after an unclean close", ProcessorStateManager, "close", kept_after_unclean_close, 1),
    Mutant("what is in flight is committed", Waiting, "offsets", in_flight_committed, 6, plain=False),
    Mutant("calls that never time out", LoopCalls, "_timeout", no_timeout, 6, plain=False),
    Mutant("overtaken calls left behind", Waiting, "_may_stay", overtaken_left_behind, 294, plain=False),
)

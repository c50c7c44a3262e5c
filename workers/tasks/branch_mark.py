"""The mark in the committed offsets of an application and its branches: which of them writes the real outputs.

See docs/branches.md, docs/decisions/12-branches.md and 13-cutover.md. A branch has offsets before its topics have
records, so that no stream thread starts from a part of them. Later the mark stays: every commit repeats it, like the
times of operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.context.exception_handlers import SINK_PREFIX
from penstock.topology.errors import BranchError

from .topic_partition_metadata import BRANCH_MARK, EXCHANGE_MARK, TopicPartitionMetadata


class BranchState(IntEnum):
    """The value of the mark. An application without a mark is no branch, and was not exchanged."""

    #: Is being copied, and must not start.
    UNFINISHED = 1
    #: Runs with a prefix for its output topics.
    SHADOW = 2
    #: Is about to replace the writer, and must not start.
    HALTED = 3
    #: Writes the real output topics, after an exchange: runs without a prefix.
    WRITER = 4


class BranchMark(NamedTuple):
    """A mark. exchange: the number of the exchange that has set it, 0 without one."""

    state: BranchState
    exchange: int = 0


def branch_marks(committed: Iterable[OffsetAndMetadata | None]) -> set[BranchMark]:
    """Return the marks of committed offsets; none for an application that is no branch."""
    known = (TopicPartitionMetadata.decode(at.metadata).processor_metadata for at in committed if at is not None)
    return {
        BranchMark(BranchState(metadata[BRANCH_MARK]), metadata.get(EXCHANGE_MARK, 0))
        for metadata in known
        if BRANCH_MARK in metadata
    }


def branch_states(committed: Iterable[OffsetAndMetadata | None]) -> set[BranchState]:
    """Return the states that committed offsets are marked with; none for an application that is no branch."""
    return {mark.state for mark in branch_marks(committed)}


def marked(metadata: str, mark: BranchMark) -> str:
    """Return the metadata of a committed offset with another mark."""
    known = TopicPartitionMetadata.decode(metadata)
    own = {BRANCH_MARK: mark.state, EXCHANGE_MARK: mark.exchange}
    return TopicPartitionMetadata(known.partition_time, {**known.processor_metadata, **own}).encode()


def check_branch(application_id: str, committed: Iterable[OffsetAndMetadata | None], config: Mapping[str, Any]) -> None:
    """Raise BranchError if an application with these offsets must not run, or not with this prefix."""
    states, prefix = branch_states(committed), config[SINK_PREFIX]
    if BranchState.UNFINISHED in states:
        raise BranchError(
            f"The branch {application_id} is not complete: `penstock branch create {application_id}` was interrupted, "
            "or has not ended yet. Run that command again with the configuration of the original"
        )
    if BranchState.HALTED in states:
        raise BranchError(
            f"The application {application_id} is about to write the real outputs: `penstock branch cutover` or "
            "`rollback` was interrupted, or has not ended yet. Run that command again"
        )
    if BranchState.SHADOW in states and not prefix:
        raise BranchError(
            f"The application {application_id} is a branch, or was replaced by one, and would write to the output "
            f"topics of the other application. Give them a prefix: -c {SINK_PREFIX}={application_id}."
        )
    if BranchState.WRITER in states and prefix:
        raise BranchError(
            f"The application {application_id} writes the real outputs since `penstock branch cutover` or `rollback`, "
            f"but has {SINK_PREFIX}={prefix}: its records would be missing there. Start it without a prefix"
        )

"""What one transaction has: partitions, and the group's offsets; and how its coordinators come to know of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.topology.records import TopicPartition

from ..cluster.brokers import ProducerId
from ..cluster.coordinators import CoordinatorKind
from ..errors import ErrorCode
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from ..protocol.schema import Request
from . import transaction_requests as requests


class Question(NamedTuple):
    """What a coordinator is asked.

    codes: returns the error codes of an answer, by what they are about. done: called with an answer that has none.
    begins: whether a coordinator has begun the transaction when it has answered, or may have.
    """

    kind: CoordinatorKind
    key: str
    request: Request
    codes: Callable[[Any], Mapping[Any, int]]
    done: Callable[[Any], None]
    begins: bool = False

    def failure(self, answer: Any) -> tuple[int, str]:
        """Return the error of an answer and what it is about; 0 if there is none."""
        # With one that is refused, the others are not attempted.
        codes = {what: code for what, code in self.codes(answer).items() if code}
        for what, code in codes.items():
            if code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                return code, str(what)
        return next(((code, str(what)) for what, code in codes.items()), (0, ""))


def code_of(answer: Any) -> Mapping[str, int]:
    """Return the error code of an answer that has one."""
    return {"": answer.error_code}


class OpenTransaction:
    """A transaction of a producer from its beginning to its end. is_new: by the new protocol, see transactions.py."""

    def __init__(self, transactional_id: str, producer: ProducerId, is_new: bool) -> None:
        self._transactional_id = transactional_id
        self._producer = producer
        self.is_new = is_new
        self._added: set[TopicPartition] = set()
        self._to_add: dict[TopicPartition, None] = {}  # in order
        self._group: GroupMetadata | None = None
        self._group_added = is_new
        self._offsets: dict[TopicPartition, OffsetAndMetadata] = {}  # that are not taken yet
        #: Whether a coordinator knows of it, or may: then it has to be ended.
        self.has_begun = False

    def may_write(self, partition: TopicPartition) -> bool:
        """Return whether batches of a partition may be sent; if not, it is to be added."""
        if self.is_new:
            self.has_begun = True
            return True
        if partition not in self._added:
            self._to_add[partition] = None
        return partition in self._added

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Have offsets sent."""
        self._offsets, self._group = dict(offsets), group

    @property
    def has_sent_offsets(self) -> bool:
        """Whether the coordinator has taken all offsets."""
        return not self._offsets

    def next_question(self) -> Question | None:
        """Return what is to be asked before more can be written, None if there is nothing."""
        who = self._transactional_id, self._producer
        if self._to_add:
            return self._to_transaction(
                requests.add_partitions(*who, tuple(self._to_add)), requests.added_partitions, self._take_added
            )
        if not self._offsets or self._group is None:
            return None
        if not self._group_added:
            return self._to_transaction(requests.add_offsets(*who, self._group.group_id), code_of, self._take_group)
        request = requests.txn_offset_commit(*who, self._group, self._offsets, self.is_new)
        key = self._group.group_id
        return Question(CoordinatorKind.GROUP, key, request, requests.committed_offsets, self._take_offsets, True)

    def _to_transaction(
        self, request: Request, codes: Callable[[Any], Mapping[Any, int]], done: Callable[[Any], None]
    ) -> Question:
        return Question(CoordinatorKind.TRANSACTION, self._transactional_id, request, codes, done, True)

    def _take_added(self, answer: Any) -> None:
        for partition in requests.added_partitions(answer):
            self._added.add(partition)
            self._to_add.pop(partition, None)

    def _take_group(self, answer: Any) -> None:
        self._group_added = True

    def _take_offsets(self, answer: Any) -> None:
        self._offsets.clear()

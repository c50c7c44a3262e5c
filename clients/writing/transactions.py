"""A producer's transactions (Kafka: TransactionManager).

There are two protocols. The new one (KIP-890, Kafka 4.0 and later) is used if the cluster has finalized it. Produce and
offset commit requests add partitions and the group implicitly. Each transaction has its own epoch, returned by the end
of the previous one, so that a late request can neither end nor join another transaction. The old protocol adds
partitions and the group with separate requests before writing, and keeps its epoch unless an error occurs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

from penstock.topology.records import TopicPartition

from ..cluster.brokers import ProducerId
from ..cluster.coordinators import CoordinatorKind, Coordinators
from ..errors import BrokerError, ClientError, ErrorCode, Kind, RetriableError, TransactionError, broker_error
from ..log_context import PrefixedLogger
from ..protocol.messages import api_versions
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from ..protocol.produce_messages import API_VERSION, NEW_TRANSACTIONS_VERSION
from ..protocol.schema import Request
from ..retry_log import RetryLog
from ..state_machine import StateMachine
from . import transaction_requests as requests

#: The backoff while a coordinator is still completing the last transaction, in ms; that takes milliseconds.
CONCURRENT_BACKOFF_MS = 20
_NOBODY = ProducerId(-1, -1)

#: Errors that fail the transaction, but not the producer.
_ABORTABLE = frozenset(
    (
        *(code for code in ErrorCode if code.kind is Kind.EVICTED),
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    )
)


class TransactionState(Enum):
    """The state of a transactional producer (Kafka: TransactionManager.State, plus DRAINING).

    ::

        UNINITIALIZED ---------> INITIALIZING
        INITIALIZING ----------> READY, FATAL_ERROR
        READY -----------------> IN_TRANSACTION, UNINITIALIZED
        IN_TRANSACTION --------> COMMITTING_TRANSACTION, DRAINING, ABORTABLE_ERROR, FATAL_ERROR
        COMMITTING_TRANSACTION > READY, ABORTABLE_ERROR, FATAL_ERROR
        ABORTABLE_ERROR -------> DRAINING
        DRAINING --------------> ABORTING_TRANSACTION
        ABORTING_TRANSACTION --> READY, INITIALIZING, FATAL_ERROR
        FATAL_ERROR ----------->

    - UNINITIALIZED after READY: continues as a new producer, perhaps with another transactional id.
    - DRAINING: will be aborted when no batch is in flight any more.
    - INITIALIZING after ABORTING_TRANSACTION: in the old protocol only a new epoch releases the sequence
      numbers of batches that may or may not have been written (KIP-360).
    - FATAL_ERROR: the producer must be replaced.
    """

    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING_TRANSACTION = auto()
    DRAINING = auto()
    ABORTING_TRANSACTION = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


_S = TransactionState
TRANSACTION_TRANSITIONS = {
    _S.UNINITIALIZED: (_S.INITIALIZING,),
    _S.INITIALIZING: (_S.READY, _S.FATAL_ERROR),
    _S.READY: (_S.IN_TRANSACTION, _S.UNINITIALIZED),
    _S.IN_TRANSACTION: (_S.COMMITTING_TRANSACTION, _S.DRAINING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR),
    _S.COMMITTING_TRANSACTION: (_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR),
    _S.DRAINING: (_S.ABORTING_TRANSACTION,),
    _S.ABORTING_TRANSACTION: (_S.READY, _S.INITIALIZING, _S.FATAL_ERROR),
    _S.ABORTABLE_ERROR: (_S.DRAINING,),
    _S.FATAL_ERROR: (),
}


@dataclass(eq=False)
class TransactionManager:
    """The consecutive transactions of one transactional id. Never blocks; see advance().

    timeout_ms: after this time the coordinator aborts a transaction. level_max_age_ms: how often to check which
    protocol the cluster supports. on_done: called on another thread when a response has arrived. Implements Identity
    for a Sender.
    """

    coordinators: Coordinators
    #: Identifies the producer and its predecessors to the brokers.
    transactional_id: str
    timeout_ms: int
    retry_backoff_ms: int
    level_max_age_ms: int
    on_done: Callable[[], None]
    retries: RetryLog
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self._states = StateMachine(_S.UNINITIALIZED, TRANSACTION_TRANSITIONS, self.log, level=10)
        self._producer = _NOBODY
        self._level = 0  # of transaction.version, as far as known
        self._level_is_due = True  # to be requested again
        self._level_due_ms = 0  # when it is due next
        self._numbers_used_up = False  # by batches with an unknown outcome
        self._open = OpenTransaction(self.transactional_id, _NOBODY, is_new=False)  # the current one, or the last
        self._asked: tuple[Future[SimpleNamespace], Question, TransactionState] | None = None
        self._ask_at: float = 0  # in ms
        #: Why the last request failed; None after a success.
        self.failure: str | None = None
        #: Why the transaction, or with a fatal error the producer, has failed; None while neither has.
        self.refusal: ClientError | None = None

    @property
    def state(self) -> TransactionState:
        """Return the state."""
        return self._states.state

    # What a Sender sees

    @property
    def produce_version(self) -> int:
        """Return the version of Produce requests; in the new protocol they add partitions to the transaction."""
        return NEW_TRANSACTIONS_VERSION if self._open.is_new else API_VERSION

    @property
    def producer(self) -> ProducerId | None:
        """Return the producer id and epoch, None outside of a transaction."""
        return self._producer if self.state is _S.IN_TRANSACTION else None

    @property
    def has_response(self) -> bool:
        """Whether advance() has a response to handle."""
        return self._asked is not None and self._asked[0].done()

    @property
    def next_at(self) -> float:
        """When advance() is due even without a response, in ms; infinity if it is not."""
        if self._asked is not None:
            return math.inf
        if self._next_question() is not None:
            return self._ask_at
        return self._level_due_ms if self.state is _S.IN_TRANSACTION else math.inf

    def note_pause(self, ms: int) -> None:
        """Count a pause of the caller: what is known of the cluster has aged."""
        self._level_due_ms -= ms

    def may_write(self, partition: TopicPartition) -> bool:
        """Return whether batches of a partition may be sent; if not, add it to the transaction."""
        return self._open.may_write(partition)

    def note_failed(self, error: ClientError) -> None:
        """Record that a batch was rejected or timed out: the transaction must not be committed."""
        if self.state is _S.IN_TRANSACTION:
            self._fail(error, fatal=error.kind is Kind.FENCED)

    def bump(self) -> None:
        """Record that the next batches need a new epoch, because they would reuse sequence numbers."""
        self._numbers_used_up = True
        if self.state is _S.IN_TRANSACTION:
            unknown = "it is unknown whether a batch was written"
            self._fail(broker_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, unknown), fatal=False)

    # The transaction

    def initialize(self) -> None:
        """Start to initialize the producer, which fences the previous one with this transactional id."""
        self._states.transition_to(_S.INITIALIZING)

    def restart(self, transactional_id: str) -> None:
        """Forget the producer, to initialize another, even if a newer one with its id has fenced it.

        The first request of the other producer has no producer id, whose epoch would have to be the newest (KIP-360).
        """
        self._states.transition_to(_S.UNINITIALIZED)
        self.transactional_id = transactional_id
        self._set_producer(_NOBODY)

    def begin(self) -> None:
        """Begin a transaction, with the protocol that the cluster currently supports."""
        self.check()
        self._states.transition_to(_S.IN_TRANSACTION)
        is_new = self._level >= requests.NEW_PROTOCOL_LEVEL
        self._open = OpenTransaction(self.transactional_id, self._producer, is_new)

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Start to add consumed offsets to the transaction."""
        self.check()
        self._open.send_offsets(offsets, group)

    @property
    def has_sent_offsets(self) -> bool:
        """Whether all offsets are in the transaction."""
        return self._open.has_sent_offsets

    def commit(self) -> None:
        """Start to commit; the state is READY afterwards. All batches must have been acknowledged."""
        self.check()
        self._end(_S.COMMITTING_TRANSACTION)

    def drain(self) -> None:
        """Stop sending batches of the transaction, to abort it."""
        if self.state is _S.FATAL_ERROR:
            self.check()
        self._states.transition_to(_S.DRAINING)
        self.refusal = None

    def abort(self) -> None:
        """Start to abort; the state is READY afterwards. No batch may be in flight."""
        self._end(_S.ABORTING_TRANSACTION)

    def _end(self, state: TransactionState) -> None:
        self._states.transition_to(state)
        self._ask_at = 0
        if not self._open.has_begun and self._asked is None:
            self._complete()  # the coordinator does not know of it

    def check(self) -> None:
        """Raise TransactionError if the transaction or the producer has failed."""
        if self.refusal is not None:
            raise TransactionError(self.refusal, can_abort=self.state is not _S.FATAL_ERROR)

    # Requests and responses

    def advance(self, now_ms: int) -> None:
        """Handle a response that has arrived, and send the next request."""
        if self._asked is not None and self._asked[0].done():
            (response, question, state), self._asked = self._asked, None
            if state is self.state:  # else it belongs to a transaction that has failed since
                self._take(response, question, now_ms)
        if now_ms >= self._level_due_ms:
            self._level_is_due, self._level_due_ms = True, now_ms + self.level_max_age_ms
        if self._asked is None and now_ms >= self._ask_at:
            self._ask()

    def _ask(self) -> None:
        question = self._next_question()
        if question is not None:
            self._open.has_begun |= question.begins
            asked = self.coordinators.ask_coordinator(question.kind, question.key, question.request, self.on_done)
            self._asked = asked, question, self.state
        elif self.state in (_S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION):
            self._complete()

    def _take(self, response: Future[SimpleNamespace], question: Question, now_ms: int) -> None:
        error = response.exception()
        if error is None:
            self._take_response(response.result(), question, now_ms)
            return
        if isinstance(error, BrokerError) and not isinstance(error, RetriableError):
            self.retries.drop(question.name)
            self._fail(error, fatal=True)
            return
        failure = str(error) or type(error).__name__
        is_new = failure != self.failure
        if is_new:
            self.log.warning(
                "A request to the %s coordinator failed: %s; trying again", question.kind.name.lower(), failure
            )
        self.failure = failure
        self.retries.failed(question.name, failure, now_ms, is_told=is_new)
        self._ask_at = now_ms + self.retry_backoff_ms

    def _take_response(self, response: SimpleNamespace, question: Question, now_ms: int) -> None:
        """Handle a coordinator's response: continue, retry, or fail."""
        number, what = question.failure(response)
        code = ErrorCode(number)
        if code is ErrorCode.NONE:
            self.failure = None
            self.retries.succeeded(question.name, now_ms)
            question.done(response)
            return
        error = broker_error(code, what)
        self.failure = str(error)
        if code.retriable:
            self.retries.failed(question.name, self.failure, now_ms)
            is_short = code == ErrorCode.CONCURRENT_TRANSACTIONS
            self._ask_at = now_ms + (CONCURRENT_BACKOFF_MS if is_short else self.retry_backoff_ms)
        else:
            self.retries.drop(question.name)
            can_abort = code in _ABORTABLE and self.state in (_S.IN_TRANSACTION, _S.COMMITTING_TRANSACTION)
            self._fail(error, fatal=not can_abort)

    def _next_question(self) -> Question | None:
        """Return the next request."""
        ask = partial(Question, CoordinatorKind.TRANSACTION, self.transactional_id)
        state = self.state
        if state is _S.INITIALIZING and not self._level_is_due:
            request = requests.init_producer_id(self.transactional_id, self.timeout_ms, self._producer)
            return ask(request, code_of, self._take_producer)
        if state in (_S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION) and self._open.has_begun:
            is_commit = state is _S.COMMITTING_TRANSACTION
            request = requests.end_txn(self.transactional_id, self._producer, is_commit, self._open.is_new)
            return ask(request, code_of, self._take_end)
        if state is _S.IN_TRANSACTION:
            question = self._open.next_question()
            if question is not None:
                return question
        if state in (_S.INITIALIZING, _S.IN_TRANSACTION) and self._level_is_due:
            return ask(api_versions(), code_of, self._take_level)
        return None

    def _take_level(self, response: SimpleNamespace) -> None:
        self._level = requests.transaction_level(response)
        self._level_is_due = False

    def _take_producer(self, response: SimpleNamespace) -> None:
        self._set_producer(ProducerId(response.producer_id, response.producer_epoch))
        self._complete()

    def _take_end(self, response: SimpleNamespace) -> None:
        self._set_producer(requests.next_producer(response, self._producer))
        self._complete()

    def _set_producer(self, producer: ProducerId) -> None:
        if producer != self._producer:
            self._numbers_used_up = False
            self._producer = producer

    def _complete(self) -> None:
        """Continue to READY, or to another epoch."""
        self._open.has_begun = False
        self._states.transition_to(_S.INITIALIZING if self._numbers_used_up else _S.READY)

    def _fail(self, error: ClientError, fatal: bool) -> None:
        """Fail the transaction, or with fatal the producer."""
        self.refusal = error
        self._states.transition_to(_S.FATAL_ERROR if fatal else _S.ABORTABLE_ERROR)


class Question(NamedTuple):
    """A request to a coordinator.

    codes: returns the error codes of a response, by subject. done: called with a response without errors. begins:
    whether the request may begin the transaction at the coordinator.
    """

    kind: CoordinatorKind
    key: str
    request: Request
    codes: Callable[[SimpleNamespace], Mapping[TopicPartition, int] | Mapping[str, int]]
    done: Callable[[SimpleNamespace], None]
    begins: bool = False

    @property
    def name(self) -> str:
        """The name of its retries."""
        return f"{self.request.api.name} for {self.key}"

    def failure(self, response: SimpleNamespace) -> tuple[int, str]:
        """Return the error code of a response and its subject; 0 if there is none."""
        # If one subject is rejected, the others have OPERATION_NOT_ATTEMPTED.
        codes = {what: code for what, code in self.codes(response).items() if code}
        for what, code in codes.items():
            if code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                return code, str(what)
        return next(((code, str(what)) for what, code in codes.items()), (0, ""))


def code_of(response: SimpleNamespace) -> Mapping[str, int]:
    """Return the error code of a response with a single one."""
    return {"": response.error_code}


class OpenTransaction:
    """A transaction's partitions and group offsets, from beginning to end. is_new: uses the new protocol."""

    def __init__(self, transactional_id: str, producer: ProducerId, is_new: bool) -> None:
        self._transactional_id = transactional_id
        self._producer = producer
        self.is_new = is_new
        self._added: set[TopicPartition] = set()
        self._to_add: dict[TopicPartition, None] = {}  # in order
        self._group: GroupMetadata | None = None
        self._group_added = is_new
        self._offsets: dict[TopicPartition, OffsetAndMetadata] = {}  # not committed to the transaction yet
        #: Whether a coordinator may know of it; then it must be ended.
        self.has_begun = False

    def may_write(self, partition: TopicPartition) -> bool:
        """Return whether batches of a partition may be sent; if not, mark it to be added."""
        if self.is_new:
            self.has_begun = True
            return True
        if partition not in self._added:
            self._to_add[partition] = None
        return partition in self._added

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Set the offsets to send."""
        self._offsets, self._group = dict(offsets), group

    @property
    def has_sent_offsets(self) -> bool:
        """Whether the coordinator has accepted all offsets."""
        return not self._offsets

    def next_question(self) -> Question | None:
        """Return the next request needed before more can be written, None if there is none."""
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
        self,
        request: Request,
        codes: Callable[[SimpleNamespace], Mapping[TopicPartition, int] | Mapping[str, int]],
        done: Callable[[SimpleNamespace], None],
    ) -> Question:
        return Question(CoordinatorKind.TRANSACTION, self._transactional_id, request, codes, done, True)

    def _take_added(self, response: SimpleNamespace) -> None:
        for partition in requests.added_partitions(response):
            self._added.add(partition)
            self._to_add.pop(partition, None)

    def _take_group(self, response: SimpleNamespace) -> None:
        self._group_added = True

    def _take_offsets(self, response: SimpleNamespace) -> None:
        self._offsets.clear()

"""A transactional producer's requests to coordinators and brokers, in both protocols, and its handling of errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.clients.errors import BrokerError, ErrorCode, TransactionError, UnreachableError
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.writing.transactions import CONCURRENT_BACKOFF_MS, TransactionState
from penstock.topology.records import TopicPartition
from tests.clients.produce_stage import LINGER_MS, OUT_0, OUT_1, Sent, told
from tests.clients.transaction_stage import MEMBER, NEW, OLD, PRODUCER_ID, TRANSACTIONAL_ID, TransactionStage

IN_0 = TopicPartition("in", 0)
S = TransactionState


@pytest.fixture
def level() -> int:
    return NEW


@pytest.fixture
def stage(level: int) -> Iterator[TransactionStage]:
    made = TransactionStage(level)
    made.producer.init_transactions()
    yield made
    made.close()


old = pytest.mark.parametrize("level", [OLD])
both = pytest.mark.parametrize("level", [OLD, NEW])


def send_offset(stage: TransactionStage, offset: int, leader_epoch: int = 4) -> None:
    stage.producer.send_offsets_to_transaction({IN_0: OffsetAndMetadata(offset, "text", leader_epoch)}, MEMBER)


def on_its_way(stage: TransactionStage) -> Sent:
    """Send a record and return its batch, which gets no response."""
    stage.send(b"a")
    for _ in range(20):  # a connection may have to be opened
        if not stage.has_request():
            stage.run(LINGER_MS)
    return stage.brokers.request().batches[OUT_0]


def failed(stage: TransactionStage) -> TransactionError:
    """Return the error of a commit that fails."""
    with pytest.raises(TransactionError) as raised:
        stage.producer.commit_transaction()
    return raised.value


def test_the_new_protocol_adds_partitions_by_writing_and_has_one_epoch_per_transaction(stage: TransactionStage) -> None:
    for number in range(2):
        stage.producer.begin_transaction()
        assert on_its_way(stage) == Sent(PRODUCER_ID, number, 0, (b"a",), in_transaction=True)
        stage.lose_connection()  # it is sent again
        stage.producer.flush()
        send_offset(stage, number)
        stage.producer.commit_transaction()
    assert stage.brokers.questions == ["ApiVersions", "InitProducerId", *["TxnOffsetCommit", "EndTxn"] * 2]
    assert stage.brokers.visible == {OUT_0: [b"a", b"a"]}
    assert stage.brokers.kafka.committed(IN_0) == OffsetAndMetadata(1, "text", 4)


def test_the_fields_of_a_request_of_the_new_protocol(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.run()
    stage.run(LINGER_MS)
    request = stage.brokers.request()
    assert (request.version, request.fields.transactional_id) == (12, TRANSACTIONAL_ID)
    stage.lose_connection()
    send_offset(stage, 7)
    given = stage.brokers.requests[-1].body
    assert {name: value for name, value in given.items() if name != "topics"} == {
        "transactional_id": TRANSACTIONAL_ID,
        "producer_id": PRODUCER_ID,
        "producer_epoch": 0,
        "group_id": MEMBER.group_id,
        "generation_id_or_member_epoch": 3,
        "member_id": "member",
        "group_instance_id": "instance",
    }


@old
def test_the_old_protocol_adds_partitions_before_writing_and_keeps_its_epoch(stage: TransactionStage) -> None:
    for number in range(2):
        stage.producer.begin_transaction()
        stage.brokers.answers_at_once = False
        stage.send(b"a")
        stage.run()
        stage.run(LINGER_MS)
        assert not stage.has_request(), "the partition is not added yet"
        stage.brokers.answer_question()
        stage.brokers.answers_at_once = True
        stage.run()
        request = stage.brokers.request()
        assert request.version == 9
        assert request.batches == {OUT_0: Sent(PRODUCER_ID, 0, number, (b"a",), in_transaction=True)}
        stage.lose_connection()
        stage.producer.flush()
        send_offset(stage, number)
        stage.producer.commit_transaction()
    each = ["AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
    assert stage.brokers.questions == ["ApiVersions", "InitProducerId", *each * 2]
    assert stage.brokers.visible == {OUT_0: [b"a", b"a"]}


@both
def test_an_empty_transaction_sends_no_requests(stage: TransactionStage) -> None:
    asked = len(stage.brokers.questions)
    for end in (stage.producer.commit_transaction, stage.producer.abort_transaction):
        stage.producer.begin_transaction()
        stage.producer.send_offsets_to_transaction({}, MEMBER)
        end()
    assert len(stage.brokers.questions) == asked
    assert stage.transactions.state is S.READY


@both
def test_an_aborted_transaction_leaves_nothing_behind(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.send(b"never sent")
    stage.producer.abort_transaction()
    stage.producer.begin_transaction()
    stage.send(b"b")
    stage.producer.commit_transaction()
    assert stage.brokers.visible == {OUT_0: [b"b"]}
    assert stage.lost() == []


@both
def test_aborting_a_batch_with_unknown_result_starts_a_new_epoch(stage: TransactionStage, level: int) -> None:
    stage.producer.begin_transaction()
    on_its_way(stage)
    stage.lose_connection()
    stage.producer.abort_transaction()
    after = ["EndTxn"] if level == NEW else ["AddPartitionsToTxn", "EndTxn", "InitProducerId"]
    assert stage.brokers.questions[2:] == after
    stage.producer.begin_transaction()
    assert on_its_way(stage) == Sent(PRODUCER_ID, 1, 0, (b"a",), in_transaction=True)


def test_a_transaction_does_not_end_while_one_of_its_batches_is_in_flight(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.run()
    stage.run(LINGER_MS)
    request = stage.brokers.request()
    questions: list[list[str]] = []

    def wait(now: int, until: float) -> None:
        stage.clock.advance(20)
        questions.append(list(stage.brokers.questions))
        if len(questions) == 5:
            stage.brokers.reply(request)

    stage.sender.wait = wait  # type: ignore[method-assign,assignment]
    stage.producer.abort_transaction()
    assert "EndTxn" not in questions[4]
    assert stage.brokers.questions[-1] == "EndTxn"


@pytest.mark.parametrize(
    "code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT]
)
@both
def test_a_retriable_request_is_sent_again(stage: TransactionStage, code: ErrorCode) -> None:
    stage.brokers.refuse(code, times=2)
    began = stage.clock.now_ms
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.commit_transaction()
    assert stage.brokers.visible == {OUT_0: [b"a"]}
    assert max(map(stage.brokers.questions.count, stage.brokers.questions)) == 3
    pause = CONCURRENT_BACKOFF_MS if code == ErrorCode.CONCURRENT_TRANSACTIONS else stage.settings.retry_backoff_ms
    assert stage.clock.now_ms - began >= 2 * pause


def test_an_end_with_a_lost_response_is_sent_again(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.brokers.answers_at_once = False
    serve = stage.sender.wait

    def wait(now: int, until: int) -> None:
        if stage.brokers.pending:
            stage.brokers.answer_question(UnreachableError("gone") if stage.brokers.questions[-2] != "EndTxn" else None)
        serve(now, until)

    stage.sender.wait = wait  # type: ignore[method-assign,assignment]
    stage.producer.commit_transaction()
    assert stage.brokers.questions[-2:] == ["EndTxn", "EndTxn"]
    assert stage.brokers.visible == {OUT_0: [b"a"]}
    stage.brokers.answers_at_once = True
    stage.producer.begin_transaction()
    assert on_its_way(stage).epoch == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.TRANSACTION_ABORTABLE]
)
@both
def test_after_an_error_of_the_transaction_the_producer_starts_another(
    stage: TransactionStage, code: ErrorCode
) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.brokers.refuse(code)
    with pytest.raises(TransactionError) as raised:
        send_offset(stage, 1)
    assert (told(raised.value.cause), raised.value.can_abort) == (code, True)
    assert str(failed(stage)) == str(raised.value)
    stage.producer.abort_transaction()
    stage.producer.begin_transaction()
    stage.send(b"b")
    send_offset(stage, 2)
    stage.producer.commit_transaction()
    assert stage.brokers.visible == {OUT_0: [b"b"]}
    assert stage.brokers.kafka.committed_offset(IN_0) == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.UNKNOWN_SERVER_ERROR]
)
@both
def test_after_a_fatal_error_of_the_producer_every_call_fails(stage: TransactionStage, code: ErrorCode) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.brokers.refuse(code)
    error = failed(stage)
    assert (told(error.cause), error.can_abort) == (code, False)
    with pytest.raises(TransactionError):
        stage.producer.abort_transaction()
    with pytest.raises(TransactionError):
        stage.producer.begin_transaction()


@both
def test_a_producer_with_the_same_id_fences_the_previous_one(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    zombie, stage.producer = stage.producer, stage.new_producer()
    stage.producer.init_transactions()
    stage.producer.begin_transaction()
    with pytest.raises(TransactionError) as raised:
        zombie.commit_transaction()
    assert told(raised.value.cause) == ErrorCode.PRODUCER_FENCED
    stage.send(b"b")
    stage.producer.commit_transaction()
    assert stage.brokers.visible == {OUT_0: [b"b"]}
    zombie._sender.close()


@both
def test_a_restarted_producer_is_the_newest_even_if_it_was_replaced(stage: TransactionStage) -> None:
    replacement = stage.new_producer()
    replacement.init_transactions()
    replacement.begin_transaction()
    assert stage.producer.restart(TRANSACTIONAL_ID)
    stage.producer.init_transactions()
    for key in (b"a", b"b"):
        stage.producer.begin_transaction()
        stage.send(key)
        stage.producer.commit_transaction()
    assert stage.brokers.visible == {OUT_0: [b"a", b"b"]}
    send = replacement.send_offsets_to_transaction
    with pytest.raises(TransactionError):
        send({IN_0: OffsetAndMetadata(1, "text", 4)}, MEMBER)
    replacement._sender.close()


def test_the_protocol_is_looked_up_again_after_a_pause_of_the_caller(stage: TransactionStage) -> None:
    """As a sink of Spark pauses between micro-batches."""
    stage.brokers.set_level(OLD)
    stage.clock.advance(stage.settings.metadata_max_age_ms)
    stage.producer.restart(TRANSACTIONAL_ID)
    stage.producer.init_transactions()
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.commit_transaction()
    assert stage.brokers.questions[-4:] == ["ApiVersions", "InitProducerId", "AddPartitionsToTxn", "EndTxn"]


def test_a_transaction_keeps_its_protocol(stage: TransactionStage) -> None:
    stage.brokers.set_level(OLD)  # the cluster is downgraded before this producer knows
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.run(stage.producer._settings.metadata_max_age_ms)
    assert stage.brokers.questions[-1] == "ApiVersions"
    stage.brokers.set_level(NEW)
    stage.producer.commit_transaction()
    stage.brokers.set_level(OLD)
    stage.producer.begin_transaction()
    stage.send(b"b")
    stage.producer.commit_transaction()
    assert stage.brokers.questions[-2:] == ["AddPartitionsToTxn", "EndTxn"]
    assert stage.brokers.visible == {OUT_0: [b"a", b"b"]}


@both
def test_a_refused_batch_fails_the_transaction_and_all_buffered_records(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.send(b"x", to=OUT_1)
    stage.run()
    stage.run(LINGER_MS)
    request = stage.brokers.request()
    stage.send(b"b")
    stage.brokers.reply(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    stage.producer.flush()
    lost = stage.lost()
    assert lost[0] == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out", 0, b"a")
    assert {key for *_, key in lost} == {b"a", b"b", b"x"}
    error = failed(stage)
    assert (told(error.cause), error.can_abort) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, True)
    stage.producer.abort_transaction()
    stage.producer.begin_transaction()
    stage.send(b"c")
    stage.producer.commit_transaction()
    assert stage.brokers.visible == {OUT_0: [b"c"]}


@old
def test_a_partition_that_cannot_be_added_fails_its_records(stage: TransactionStage) -> None:
    stage.brokers.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    assert stage.lost() == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out", 0, b"a")]


@both
def test_a_call_returns_at_its_timeout(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.brokers.answers_at_once = False
    began = stage.clock.now_ms
    with pytest.raises(TransactionError, match="within 3 s") as raised:
        stage.producer.commit_transaction(3)
    assert 3_000 <= stage.clock.now_ms - began <= 3_100
    assert (told(raised.value.cause), raised.value.can_abort) == (UnreachableError, False)


def test_the_error_names_a_broker_without_the_transaction_requests() -> None:
    stage = TransactionStage()
    stage.brokers.answers_at_once = False

    def wait(now: int, until: float) -> None:
        stage.clock.advance(20)
        if stage.brokers.pending:
            stage.brokers.answer_question(BrokerError(ErrorCode.UNSUPPORTED_VERSION, "the broker knows 0 to 2"))

    stage.sender.wait = wait  # type: ignore[method-assign,assignment]
    with pytest.raises(TransactionError, match="the broker knows 0 to 2") as raised:
        stage.producer.init_transactions()
    assert told(raised.value.cause) == ErrorCode.UNSUPPORTED_VERSION
    stage.close()

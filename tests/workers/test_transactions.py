"""What a transactional producer asks its coordinators and brokers, in both protocols, and what it makes of errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import kernel
from penstock.clients.errors import BrokerError, ErrorCode, TransactionError, UnreachableError
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.writing.transactions import CONCURRENT_BACKOFF_MS, LEVEL_MAX_AGE_MS, TransactionState
from penstock.topology.records import TopicPartition
from tests.workers.produce_stage import LINGER_MS, OUT_0, OUT_1, Sent, told
from tests.workers.transaction_stage import MEMBER, NEW, OLD, PRODUCER_ID, TRANSACTIONAL_ID, TransactionStage

pytestmark = pytest.mark.skipif(kernel.record_accumulator is None, reason="the compiled kernel is not built here")
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
    """Send a record and return its batch, which is not answered."""
    stage.send(b"a")
    for _ in range(20):  # there may be a connection to be made
        if not stage.has_request():
            stage.run(LINGER_MS)
    return stage.brokers.request().batches[OUT_0]


def failed(stage: TransactionStage) -> TransactionError:
    """Return why a commit fails."""
    with pytest.raises(TransactionError) as raised:
        stage.producer.commit_transaction()
    return raised.value


def test_the_new_protocol_adds_by_writing_and_has_an_epoch_for_each_transaction(stage: TransactionStage) -> None:
    for number in range(2):
        stage.producer.begin_transaction()
        assert on_its_way(stage) == Sent(PRODUCER_ID, number, 0, (b"a",), in_transaction=True)
        stage.lose_connection()  # it comes again
        stage.producer.flush()
        send_offset(stage, number)
        stage.producer.commit_transaction()
    coordinator = stage.brokers.coordinator
    assert stage.brokers.questions == ["ApiVersions", "InitProducerId", *["TxnOffsetCommit", "EndTxn"] * 2]
    assert (coordinator.visible, coordinator.offsets) == ({OUT_0: [b"a", b"a"]}, {IN_0: 1})
    assert coordinator.epochs_committed == {IN_0: 4}


def test_what_a_request_of_the_new_protocol_says(stage: TransactionStage) -> None:
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
        "group_id": "group",
        "generation_id_or_member_epoch": 3,
        "member_id": "member",
        "group_instance_id": "instance",
    }


@old
def test_the_old_protocol_adds_before_it_writes_and_keeps_its_epoch(stage: TransactionStage) -> None:
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
    assert stage.brokers.coordinator.visible == {OUT_0: [b"a", b"a"]}


@both
def test_nothing_is_asked_about_a_transaction_without_anything(stage: TransactionStage) -> None:
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
    assert stage.brokers.coordinator.visible == {OUT_0: [b"b"]}
    assert stage.lost() == []


@both
def test_a_batch_of_which_nobody_knows_costs_the_epoch_when_it_is_aborted(stage: TransactionStage, level: int) -> None:
    stage.producer.begin_transaction()
    on_its_way(stage)
    stage.lose_connection()
    stage.producer.abort_transaction()
    after = ["EndTxn"] if level == NEW else ["AddPartitionsToTxn", "EndTxn", "InitProducerId"]
    assert stage.brokers.questions[2:] == after
    stage.producer.begin_transaction()
    assert on_its_way(stage) == Sent(PRODUCER_ID, 1, 0, (b"a",), in_transaction=True)


def test_a_transaction_is_not_ended_while_a_batch_of_it_is_on_its_way(stage: TransactionStage) -> None:
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
def test_a_question_is_asked_again_where_that_may_help(stage: TransactionStage, code: ErrorCode) -> None:
    stage.brokers.codes = [code, code]
    began = stage.clock.now_ms
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.commit_transaction()
    assert stage.brokers.coordinator.visible == {OUT_0: [b"a"]}
    assert not stage.brokers.codes
    pause = CONCURRENT_BACKOFF_MS if code == ErrorCode.CONCURRENT_TRANSACTIONS else stage.settings.retry_backoff_ms
    assert stage.clock.now_ms - began >= 2 * pause


def test_an_end_whose_answer_was_lost_is_asked_for_again(stage: TransactionStage) -> None:
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
    assert stage.brokers.coordinator.visible == {OUT_0: [b"a"]}
    stage.brokers.answers_at_once = True
    stage.producer.begin_transaction()
    assert on_its_way(stage).epoch == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.TRANSACTION_ABORTABLE]
)
@both
def test_after_an_error_of_the_transaction_the_producer_begins_another(
    stage: TransactionStage, code: ErrorCode
) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.brokers.codes = [code]
    with pytest.raises(TransactionError) as raised:
        send_offset(stage, 1)
    assert (told(raised.value.cause), raised.value.can_abort) == (code, True)
    assert str(failed(stage)) == str(raised.value)
    stage.producer.abort_transaction()
    stage.producer.begin_transaction()
    stage.send(b"b")
    send_offset(stage, 2)
    stage.producer.commit_transaction()
    assert stage.brokers.coordinator.visible == {OUT_0: [b"b"]}
    assert stage.brokers.coordinator.offsets == {IN_0: 2}


@pytest.mark.parametrize(
    "code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.UNKNOWN_SERVER_ERROR]
)
@both
def test_after_an_error_of_the_producer_nothing_goes(stage: TransactionStage, code: ErrorCode) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.brokers.codes = [code]
    error = failed(stage)
    assert (told(error.cause), error.can_abort) == (code, False)
    with pytest.raises(TransactionError):
        stage.producer.abort_transaction()
    with pytest.raises(TransactionError):
        stage.producer.begin_transaction()


@both
def test_a_producer_with_the_same_id_fences_the_one_before(stage: TransactionStage) -> None:
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
    assert stage.brokers.coordinator.visible == {OUT_0: [b"b"]}
    zombie._sender.close()


def test_the_protocol_is_that_of_the_whole_transaction(stage: TransactionStage) -> None:
    stage.brokers.coordinator.level = OLD  # it is downgraded while this producer does not know yet
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.run(LEVEL_MAX_AGE_MS)
    assert stage.brokers.questions[-1] == "ApiVersions"
    stage.brokers.coordinator.level = NEW
    stage.producer.commit_transaction()
    stage.brokers.coordinator.level = OLD
    stage.producer.begin_transaction()
    stage.send(b"b")
    stage.producer.commit_transaction()
    assert stage.brokers.questions[-2:] == ["AddPartitionsToTxn", "EndTxn"]
    assert stage.brokers.coordinator.visible == {OUT_0: [b"a", b"b"]}


@both
def test_a_refused_batch_fails_the_transaction_and_all_that_waits(stage: TransactionStage) -> None:
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
    assert stage.brokers.coordinator.visible == {OUT_0: [b"c"]}


@old
def test_a_partition_that_may_not_be_added_fails_what_is_for_it(stage: TransactionStage) -> None:
    stage.brokers.codes = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    assert stage.lost() == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out", 0, b"a")]


@both
def test_a_call_comes_back_when_its_time_is_over(stage: TransactionStage) -> None:
    stage.producer.begin_transaction()
    stage.send(b"a")
    stage.producer.flush()
    stage.brokers.answers_at_once = False
    began = stage.clock.now_ms
    with pytest.raises(TransactionError, match="within 3 s") as raised:
        stage.producer.commit_transaction(3)
    assert 3_000 <= stage.clock.now_ms - began <= 3_100
    assert (told(raised.value.cause), raised.value.can_abort) == (UnreachableError, False)


def test_a_broker_that_knows_no_such_requests_is_said() -> None:
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

"""The adapter for librdkafka: the mapping of its errors, and its writer over librdkafka's own mock broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from penstock.clients.errors import (
    BrokerError,
    ClientError,
    DeliveryTimeoutError,
    ErrorCode,
    Kind,
    MissingPartitionError,
    RetriableError,
    TransactionError,
    UnreachableError,
    UnusableClientError,
)
from penstock.clients.librdkafka import (
    LibrdkafkaWriter,
    make_admin,
    make_command_consumer,
    make_consumer,
    make_producer,
    writer,
)
from penstock.clients.librdkafka.errors import client_error
from penstock.clients.librdkafka.writer import _bounded
from penstock.clients.protocol.offset_commits import GroupMetadata
from penstock.clients.writing.writer import TransactionalWriter
from penstock.topology.errors import ConfigError
from tests.clients.test_opening import silent
from tests.waiting import PATIENCE_FACTOR, PATIENCE_SECONDS

SECONDS = 10.0


# -- errors


def codes_of_librdkafka() -> dict[str, int]:
    found = {name: getattr(KafkaError, name) for name in dir(KafkaError) if name.lstrip("_").isupper()}
    return {name: code for name, code in found.items() if isinstance(code, int)}


def test_each_broker_error_code_is_the_same() -> None:
    of_brokers = {code for code in codes_of_librdkafka().values() if code >= -1 and code != 0}
    assert len(of_brokers) > 100
    for code in of_brokers:
        error = client_error(KafkaError(code))
        assert isinstance(error, BrokerError)
        assert (error.code, isinstance(error, RetriableError)) == (code, ErrorCode(code).retriable)


@pytest.mark.parametrize(
    ("code", "kind", "meant"),
    [
        (KafkaError._MSG_TIMED_OUT, DeliveryTimeoutError, Kind.AGAIN),
        (KafkaError._UNKNOWN_PARTITION, MissingPartitionError, Kind.AGAIN),
        (KafkaError._TRANSPORT, UnreachableError, Kind.AGAIN),
        (KafkaError._ALL_BROKERS_DOWN, UnreachableError, Kind.AGAIN),
        (KafkaError._TIMED_OUT, UnreachableError, Kind.AGAIN),
        (KafkaError._FATAL, UnusableClientError, Kind.FATAL),
        (KafkaError._STATE, UnusableClientError, Kind.FATAL),
        (KafkaError._INVALID_ARG, ClientError, Kind.FATAL),
    ],
)
def test_librdkafkas_own_error_codes_have_classes(code: int, kind: type[ClientError], meant: Kind) -> None:
    error = client_error(KafkaError(code))
    assert (type(error), error.kind) == (kind, meant)
    assert KafkaError(code).str() in str(error)


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        (KafkaError._UNKNOWN_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (KafkaError._AUTO_OFFSET_RESET, ErrorCode.OFFSET_OUT_OF_RANGE),
        (KafkaError._FENCED, ErrorCode.PRODUCER_FENCED),
        (KafkaError._BAD_MSG, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_some_of_librdkafkas_own_codes_stand_for_a_brokers_code(code: int, meant: ErrorCode) -> None:
    error = client_error(KafkaError(code))
    assert isinstance(error, BrokerError)
    assert error.code == meant
    assert isinstance(error, RetriableError) == (meant is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "as is is of no use"


# -- the writer


def mock(**settings: Any) -> LibrdkafkaWriter:
    own = {"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 0, "linger.ms": 0}
    return LibrdkafkaWriter(Producer({**own, **settings}))


def test_a_full_queue_is_waited_for() -> None:
    made = mock(**{"queue.buffering.max.messages": 2})
    for number in range(20):
        made.produce("topic", b"%d" % number, b"v", 0, 1)
    made.flush(SECONDS)
    assert made.take_lost() == []
    made.close()


def test_a_lost_record_is_reported_with_its_reason() -> None:
    unreachable = {"test.mock.num.brokers": 0, "bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 200}
    made = mock(**unreachable)
    made.produce("topic", b"k", b"v", 0, 1)
    made.flush(SECONDS)
    ((error, record, _source, _is_refused),) = made.take_lost()
    assert (type(error), record.topic(), record.key(), record.value()) == (DeliveryTimeoutError, "topic", b"k", b"v")
    assert made.take_lost() == []
    made.close()


def test_a_record_that_is_refused_at_once_raises() -> None:
    made = mock(**{"message.max.bytes": 1_000})
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        made.produce("topic", b"k", b"v" * 2_000, 0, 1)
    made.close()


def test_purged_records_are_not_reported_as_lost() -> None:
    made = mock(**{"linger.ms": 60_000})
    made.produce("topic", b"k", b"v", 0, 1)
    made.close()
    made.poll()
    assert made.take_lost() == []


# -- transactions


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set at the end, so that the abandoned thread ends too."""
    monkeypatch.setattr(writer, "GRACE_SECONDS", 0.05)
    event = threading.Event()
    before = set(threading.enumerate())  # tests of real transactions may have left threads that never end
    yield event
    event.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_a_call_that_does_not_return_is_abandoned_and_counted(release: threading.Event) -> None:
    def commit_transaction(_seconds: float) -> None:
        release.wait()

    with pytest.raises(TransactionError, match="did not return from commit_transaction within 0 s") as given_up:
        _bounded(commit_transaction, 0.01)
    assert isinstance(given_up.value.cause, UnreachableError)
    assert not given_up.value.can_abort


def test_an_exception_of_a_call_is_raised() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "x", "log_level": 0}
    made = LibrdkafkaWriter(Producer(settings))
    with pytest.raises(TransactionError, match="Operation not valid"):
        made.commit_transaction(1.0)
    with pytest.raises(TransactionError) as timed_out:
        made.init_transactions(0.1)
    assert isinstance(timed_out.value.cause, RetriableError)


def test_every_blocking_transaction_call_has_a_timeout(release: threading.Event) -> None:
    class Hung:
        """A Producer whose calls do not return."""

        def __getattr__(self, name: str) -> Any:
            def call(*_: Any) -> None:
                release.wait()

            call.__name__ = name
            return call

    made: TransactionalWriter = LibrdkafkaWriter(Hung())
    calls: tuple[Callable[[], None], ...] = (
        lambda: made.init_transactions(0.01),
        lambda: made.send_offsets_to_transaction({}, GroupMetadata("group"), 0.01),
        lambda: made.commit_transaction(0.01),
        lambda: made.abort_transaction(0.01),
    )
    for call in calls:
        began = time.monotonic()
        with pytest.raises(TransactionError, match="did not return"):
            call()
        assert time.monotonic() - began < SECONDS


# -- settings


SETUP_TIMEOUT = "socket.connection.setup.timeout.ms"
Make = Callable[[dict[str, Any]], Any]
MAKERS: list[tuple[Make, dict[str, Any]]] = [
    (make_consumer, {"group.id": "group"}),
    (make_command_consumer, {"group.id": "group"}),
    (make_producer, {"enable.idempotence": True, "linger.ms": 5}),
    (make_admin, {}),
]


@pytest.mark.parametrize(("given", "least", "most"), [({}, 3.9, 7.0), ({SETUP_TIMEOUT: 1_000}, 0.9, 3.5)])
def test_a_silent_address_is_left_before_a_command_ends(given: dict[str, int], least: float, most: float) -> None:
    """Until then, librdkafka tries no other address of the name. least, most: after how many seconds."""
    left: dict[Make, float] = {}

    def note(make: Make, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            left.setdefault(make, time.monotonic() - began)

    with silent() as (host, port):
        common = {"bootstrap.servers": f"{host}:{port}", "log_level": 0, **given}
        began = time.monotonic()
        clients = [make({**common, **own, "error_cb": partial(note, make)}) for make, own in MAKERS]
        while len(left) < len(clients) and time.monotonic() < began + PATIENCE_SECONDS:
            for client in clients:
                client.poll(0.05)
    assert left.keys() == {make for make, _ in MAKERS}
    assert all(least <= seconds <= most * PATIENCE_FACTOR for seconds in left.values()), left


def test_the_error_names_settings_that_librdkafka_refuses() -> None:
    with pytest.raises(ConfigError, match=r'settings of the consumer: No such configuration property: "no\.such"'):
        make_consumer({"group.id": "group", "no.such": 1})

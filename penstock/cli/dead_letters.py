"""Dead letters (KIP-1034): reads them, and replays each record once to its source topic.

A record may have several dead letters: from several operators, or from reprocessing after a crash. It is replayed once:
the transaction that writes records to their source topics also writes a marker for each to the compacted topic
``<dead-letter topic>-replayed``. A replay first fences all others by the transactional id, which also ends a
transaction that an interrupted replay left open. Then it reads the markers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from confluent_kafka import Consumer, KafkaException, Message

from penstock.cli.topics import Topics, read_records
from penstock.clients.errors import ClientError, Kind, TransactionError
from penstock.clients.librdkafka import as_writer
from penstock.clients.writing.writer import TransactionalWriter, Writer
from penstock.statestore.view.spelling import spell_bytes
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.exception_handlers import DEAD_LETTER_TOPIC, LETTER_HEADER, SINK_PREFIX
from penstock.topology.errors import BrokerUnavailableError, ConfigError, MissingSourceTopicError, StreamsError
from penstock.workers.tasks.record_collector import TIMESTAMP_HEADER
from penstock.workers.thread.client_supplier import KafkaClientSupplier

TIMEOUT_SECONDS = 30.0
#: Dead letters per transaction.
TRANSACTION_LETTERS = 500
Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of the dead-letter topic. timestamp (ms): the failed record's. headers: all."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def name(self) -> str:
        """Its name for users: ``partition:offset``."""
        return f"{self.partition}:{self.offset}"

    def error(self, name: str) -> str:
        """Return a header about the error: exception, message, stacktrace, topic, partition or offset; "" without."""
        data = next((data for key, data in reversed(self.headers) if key == LETTER_HEADER + name), None)
        return "" if data is None else data.decode(errors="replace")

    @property
    def source(self) -> tuple[str, int] | None:
        """Return the record's source topic and partition, None if the dead letter does not name them."""
        topic, partition = self.error("topic"), self.error("partition")
        return (topic, int(partition)) if topic and partition.isdecimal() else None

    @property
    def origin(self) -> str | None:
        """Return the identity of the failed record: its source and timestamp; None if it cannot be replayed.

        A dead letter from an operator's buffer has neither key nor value if the buffer was restored in between.
        """
        if self.source is None or (self.key is None and self.value is None):
            return None
        topic, partition = self.source
        return f"{topic}-{partition}@{self.error('offset')}:{self.timestamp}"

    @property
    def own_headers(self) -> Headers:
        """Return the failed record's own headers."""
        return [(key, data) for key, data in self.headers if not key.startswith(LETTER_HEADER)]


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection of dead letters: those that match all given criteria. names: of Letter; since_ms: since 1970."""

    names: frozenset[str] = frozenset()
    exception: str = ""
    message: str = ""
    source: str = ""
    since_ms: int | None = None

    def fits(self, letter: Letter) -> bool:
        """Return whether a dead letter is selected."""
        return (
            (not self.names or letter.name in self.names)
            and self.exception.lower() in letter.error("exception").lower()
            and self.message.lower() in letter.error("message").lower()
            and self.source in ("", letter.error("topic"))
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """The replayed records. letters: the dead letters' timestamps (ms) by their names; origins: of Letter."""

    letters: Mapping[str, int] = field(default_factory=dict)
    origins: frozenset[str] = frozenset()

    def has(self, letter: Letter) -> bool:
        """Return whether the record of a dead letter was replayed, by this dead letter or by another one."""
        return self.letters.get(letter.name) == letter.timestamp or letter.origin in self.origins


class DeadLetters:
    """The dead letters of one dead-letter topic.

    topic: None means the configured one. Raises ConfigError if there is none, MissingSourceTopicError if the
    brokers have no such topic, BrokerUnavailableError if they do not answer.
    """

    def __init__(self, config: StreamsConfig, topic: str | None = None) -> None:
        config.require("application.id", "bootstrap.servers")
        configured = config[DEAD_LETTER_TOPIC]
        self.topic: str = topic or (config[SINK_PREFIX] + configured if configured else "")
        if not self.topic:
            raise ConfigError(f"No dead-letter topic is configured: set {DEAD_LETTER_TOPIC}, or name one with --topic.")
        self.markers = f"{self.topic}-replayed"
        self._config = config
        self._supplier = KafkaClientSupplier(config.with_overrides({"isolation.level": "read_committed"}))
        self._client_id = f"{config['application.id']}-dlq"

    def letters(self) -> Iterator[Letter]:
        """Yield all dead letters by partition and offset, up to the current end of the topic."""
        for message in self._read(self.topic):
            headers = cast("Headers", list(message.headers() or ()))
            kept = dict(headers).get(TIMESTAMP_HEADER)
            yield Letter(
                message.partition() or 0,
                message.offset() or 0,
                message.timestamp()[1] if kept is None else int(kept),
                message.key(),
                message.value(),
                headers,
            )

    def replayed(self) -> Replayed:
        """Return the records replayed so far."""
        try:
            messages = list(self._read(self.markers))
        except MissingSourceTopicError:
            return Replayed()
        markers = {(message.key() or b"").decode(): json.loads(message.value() or b"{}") for message in messages}
        return Replayed(
            {name: marker["timestamp"] for name, marker in markers.items()},
            frozenset(marker["origin"] for marker in markers.values() if "origin" in marker),
        )

    def replay(self, choice: Choice) -> tuple[list[Letter], list[Letter]]:
        """Replay the records of the selected dead letters; return as waiting does.

        Raises StreamsError if another replay takes over; uncommitted records are then not written.
        """
        self._make_marker_topic()
        transactional_id = f"penstock-dlq-replay-{self.topic}"
        made = self._supplier.get_producer(self._client_id, transactional_id=transactional_id)
        producer = cast("TransactionalWriter", as_writer(made))
        try:
            producer.init_transactions(TIMEOUT_SECONDS)  # from here on no other replay writes markers
            done, stuck = self.waiting(choice)
            self._check_sources(done)
            for start in range(0, len(done), TRANSACTION_LETTERS):
                producer.begin_transaction()
                for letter in done[start : start + TRANSACTION_LETTERS]:
                    self._put_back(producer, letter)
                producer.commit_transaction(TIMEOUT_SECONDS)
        except ClientError as error:
            lost = producer.take_lost()
            with suppress(TransactionError):  # no transaction is open, or another replay has aborted it
                producer.abort_transaction(TIMEOUT_SECONDS)
            reason = str(lost[0].error if lost else error)
            if error.kind is Kind.FENCED:
                reason = "another replay has taken over"
            raise StreamsError(
                f"The replay has stopped: {reason}. Its uncommitted records are not written. Run it again to "
                "replay the rest."
            ) from error
        finally:
            producer.close()
        return done, stuck

    def waiting(self, choice: Choice) -> tuple[list[Letter], list[Letter]]:
        """Return the selected dead letters that were not replayed: one per record; then those without an origin.

        Raises StreamsError if one that is selected by name does not exist.
        """
        replayed = self.replayed()
        chosen = [letter for letter in self.letters() if choice.fits(letter)]
        if missing := choice.names - {letter.name for letter in chosen}:
            raise StreamsError(
                f"There is no letter {', '.join(sorted(missing))} in {self.topic} that matches; its retention time may "
                "have passed. `penstock dlq list` shows the letters."
            )
        found = [letter for letter in chosen if not replayed.has(letter)]
        by_record: dict[str, Letter] = {}
        for letter in found:
            if letter.origin is not None:
                by_record.setdefault(letter.origin, letter)
        return list(by_record.values()), [letter for letter in found if letter.origin is None]

    def _check_sources(self, letters: Iterable[Letter]) -> None:
        """Raise MissingSourceTopicError, before anything is written, if a dead letter's partition no longer exists."""
        found = self._supplier.get_admin_client(self._client_id).list_topics(timeout=TIMEOUT_SECONDS).topics
        for letter in letters:
            topic, partition = letter.source or ("", 0)
            if topic not in found or partition not in found[topic].partitions:
                raise MissingSourceTopicError(
                    f"Letter {letter.name} comes from {topic}-{partition}, which no longer exists. Select others, "
                    "e.g. with --source TOPIC."
                )

    def _put_back(self, producer: Writer, letter: Letter) -> None:
        topic, partition = letter.source or ("", 0)
        now_ms = time.time_ns() // 1_000_000
        marked = {"timestamp": letter.timestamp, "replayed_at": now_ms, "origin": letter.origin}
        marker = json.dumps(marked).encode()
        producer.produce(topic, letter.key, letter.value, partition, letter.timestamp, letter.own_headers)
        producer.produce(self.markers, letter.name.encode(), marker, 0, now_ms)

    def _read(self, topic: str) -> Iterator[Message]:
        """Yield the committed records of a topic up to the current end offsets."""
        consumer: Consumer = self._supplier.command_consumer(self._client_id)
        try:
            self._require(consumer, topic)
            yield from read_records(consumer, topic)
        except KafkaException as error:
            raise BrokerUnavailableError(f"The topic {topic} cannot be read: {error.args[0].str()}.") from error
        finally:
            consumer.close()

    def _require(self, consumer: Consumer, topic: str) -> None:
        found = consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
        if found.error is not None or not found.partitions:
            raise MissingSourceTopicError(f"There is no topic {topic}: check its name and the cluster.")

    def _make_marker_topic(self) -> None:
        try:
            Topics(self._config).create([self.markers], 1, None, {"cleanup.policy": "compact"})
        except BrokerUnavailableError:
            raise
        except StreamsError as error:
            raise StreamsError(
                f"{error} It is for the markers of replayed records: create it by hand, with one partition and "
                "cleanup.policy=compact."
            ) from error


def shown(letters: Iterable[Letter], replayed: Replayed) -> list[dict[str, Any]]:
    """Return the rows of a list of dead letters; bytes as text."""
    return [
        {
            "letter": letter.name,
            "timestamp": letter.timestamp,
            "exception": letter.error("exception"),
            "message": letter.error("message"),
            "source": f"{letter.source[0]}-{letter.source[1]}@{letter.error('offset')}" if letter.source else None,
            "replayed": replayed.has(letter),
            "key": text(letter.key),
            "value": text(letter.value),
        }
        for letter in letters
    ]


def text(data: bytes | None) -> str | None:
    """Return bytes as ``penstock state`` shows them."""
    return None if data is None else spell_bytes(data)


def check_names(names: Collection[str]) -> frozenset[str]:
    """Return names of dead letters; raises ConfigError for anything else."""
    for name in names:
        partition, _, offset = name.partition(":")
        if not (partition.isdecimal() and offset.isdecimal()):
            raise ConfigError(f"{name!r} is not a dead letter: `penstock dlq list` shows them, e.g. 0:17.")
    return frozenset(names)

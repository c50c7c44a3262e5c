"""The records that both systems read, and the expected results: purchases of many users,
generated from a fixed seed.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import track

from tests.topics import create_topics, delete_topics, topic_names

SEED = 7
#: The compression of records, by the loader and by the systems, unless another one is measured.
CODEC = "lz4"
PARTITIONS = 4
KEYS = 100_000
FIRST_TIMESTAMP_MS = 1_700_000_000_000
RECORDS_PER_SECOND = 100_000  # of event time: a window of 10 s holds a million records, ten for each key
WINDOW_MS = 10_000
ADVANCE_MS = 2_000
GAP_MS = 500  # the gap that ends a session, and the maximum between a purchase and a payment that are joined
#: The time between a purchase that is paid, every second one, and its payment. It is odd: no payment has the timestamp
#: of a purchase, so that a join of both by time has one right result.
PAID_AFTER_MS = 201
#: Event time between two reports of all purchases so far. In this time a partition gets 25,000 records, more than
#: either system processes between two checks for due punctuations; with fewer it would skip a report.
REPORT_EVERY_MS = 1_000
ADMIN_TIMEOUT_SECONDS = 30.0
FLUSH_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A number of purchases; equal numbers mean equal records. codec: the compression of their batches.

    Tests have fewer keys and fewer records per second. skew: 1 for users that all buy as often; with 4, half of the
    purchases are those of a sixteenth of them. late: every tenth purchase is late, by one to so many windows.
    """

    records: int
    codec: str = CODEC
    keys: int = KEYS
    records_per_second: int = RECORDS_PER_SECOND
    skew: int = 1
    late: int = 0

    @property
    def topic(self) -> str:
        """The input topic."""
        keys = "" if self.keys == KEYS else f"-{self.keys}"
        skew = "" if self.skew == 1 else f"-skew-{self.skew}"
        late = f"-late-{self.late}" if self.late else ""
        return f"benchmark-purchases-{self.records}-{self.codec}{keys}{skew}{late}"

    @property
    def payments_topic(self) -> str:
        """The topic with the payments."""
        return f"benchmark-payments-{self.records}-{self.codec}"

    @property
    def table(self) -> str:
        """The topic with the users."""
        return f"benchmark-users-{self.codec}"

    def users(self) -> Iterator[int]:
        """Yield the user of each purchase, in order."""
        draw = random.Random(SEED).random
        return (int(draw() ** self.skew * self.keys) for _ in range(self.records))

    def timestamp(self, number: int) -> int:
        """Return the event time (ms, even) of the purchase of this number."""
        late = WINDOW_MS * (1 + number // 10 % self.late) if self.late and number % 10 == 0 else 0
        return FIRST_TIMESTAMP_MS + number * 500 // self.records_per_second * 2 - late

    def purchases(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield key, value and timestamp (ms) of each purchase, in order."""
        for number, user in enumerate(self.users()):
            yield b"k%06d" % user, _json(number, user), self.timestamp(number)

    def payments(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield key, value and timestamp (ms) of the payments, one for every second purchase, in order."""
        for number, user in enumerate(self.users()):
            if number % 2 == 0:
                value = b'{"user":"u%06d","method":"m%d"}' % (user, number % 5)
                yield b"k%06d" % user, value, self.timestamp(number) + PAID_AFTER_MS

    def counts(self) -> Counter[bytes]:
        """Return the number of purchases by key."""
        return Counter({b"k%06d" % user: count for user, count in Counter(self.users()).items()})

    def windowed_counts(self) -> Counter[bytes]:
        """Return the number of purchases by key and window, in the bytes of a windowed key: key, start (8 bytes)."""
        timestamp = self.timestamp
        counts = Counter((timestamp(n) // WINDOW_MS * WINDOW_MS, user) for n, user in enumerate(self.users()))
        return Counter({b"k%06d" % user + start.to_bytes(8): count for (start, user), count in counts.items()})

    def named_windowed_counts(self) -> Counter[bytes]:
        """Return the same by the key, an at sign and the window's start."""
        counts = self.windowed_counts().items()
        return Counter({b"%b@%d" % (window[:-8], int.from_bytes(window[-8:])): count for window, count in counts})

    def hopping_counts(self) -> Counter[bytes]:
        """Return the number of purchases by key and hopping window, as windowed_counts does."""
        counts: Counter[tuple[int, int]] = Counter()
        for number, user in enumerate(self.users()):
            last = self.timestamp(number) // ADVANCE_MS * ADVANCE_MS
            for start in range(last - WINDOW_MS + ADVANCE_MS, last + 1, ADVANCE_MS):
                counts[user, start] += 1
        return Counter({b"k%06d" % user + start.to_bytes(8): count for (user, start), count in counts.items()})

    def final_counts(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the counts of the windows that have closed, which are all but the last one, by windowed key."""
        last = self.timestamp(self.records - 1) // WINDOW_MS * WINDOW_MS
        for windowed, count in self.windowed_counts().items():
            if int.from_bytes(windowed[-8:]) < last:
                yield windowed, count.to_bytes(8)

    def session_counts(self) -> dict[bytes, int]:
        """Return the number of purchases by key and session: key, end, start (8 bytes each)."""
        sessions: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for number, user in enumerate(self.users()):
            time, of_user = self.timestamp(number), sessions[user]
            if of_user and time - of_user[-1][1] <= GAP_MS:
                start, _, count = of_user.pop()
                of_user.append((start, time, count + 1))
            else:
                of_user.append((time, time, 1))
        return {
            b"k%06d" % user + end.to_bytes(8) + start.to_bytes(8): count
            for user, of_user in sessions.items()
            for start, end, count in of_user
        }

    def repartitioned_counts(self) -> Counter[bytes]:
        """Return the number of purchases by their field ``user``."""
        return Counter({b"u%06d" % user: count for user, count in Counter(self.users()).items()})

    def running_totals(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield number and sum of its user's purchases after each purchase, as JSON."""
        totals: dict[bytes, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for key, value, _ in self.purchases():
            number, amount = totals[key]
            totals[key] = number, amount = number + 1, amount + orjson.loads(value)["amount"]
            yield key, _totals(number, amount)

    def running_totals_and_pages(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the running totals with the page of the user's purchase before."""
        pages: dict[bytes, str | None] = {}
        for (key, value, _), (_, totals) in zip(self.purchases(), self.running_totals(), strict=True):
            yield key, totals[:-1] + b',"previous":%b}' % orjson.dumps(pages.get(key))
            pages[key] = orjson.loads(value)["page"]

    def reports(self) -> dict[bytes, bytes]:
        """Return number and sum of all purchases before each report time, as JSON by this time."""
        reports: dict[bytes, bytes] = {}
        at, number, amount = FIRST_TIMESTAMP_MS + REPORT_EVERY_MS, 0, 0
        for _, value, time in self.purchases():
            while time >= at:
                reports[b"%d" % at] = _totals(number, amount)
                at += REPORT_EVERY_MS
            number, amount = number + 1, amount + orjson.loads(value)["amount"]
        return reports

    def paid_purchases(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the expected join with the payments: each purchase with the ``method`` of each payment near to it."""
        payments = self._payments_by_key()
        for key, value, time in self.purchases():
            of_user = payments[key]
            first = bisect_left(of_user, (time - GAP_MS,))
            for paid, method in of_user[first : bisect_left(of_user, (time + GAP_MS + 1,))]:
                assert abs(paid - time) <= GAP_MS
                yield key, _paid(value, method)

    def purchases_as_paid_before(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each purchase with the ``method`` of its user's last earlier payment, if there is one."""
        payments = self._payments_by_key()
        for key, value, time in self.purchases():
            number = bisect_left(payments[key], (time,))
            if number:
                yield key, _paid(value, payments[key][number - 1][1])

    def last_paid_purchases(self) -> dict[bytes, bytes]:
        """Return the last purchase by key, with the ``method`` of the last payment, if there is one."""
        payments = self._payments_by_key()
        return {key: _paid(value, payments[key][-1][1]) for key, value, _ in self.purchases() if payments[key]}

    def _payments_by_key(self) -> dict[bytes, list[tuple[int, bytes]]]:
        """Return time and method of all payments of each key, in order."""
        payments: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        for key, value, time in self.payments():
            payments[key].append((time, orjson.loads(value)["method"].encode()))
        return payments

    def page_changes(self) -> Iterator[tuple[bytes, int]]:
        """Yield each purchase's changes of the sum of users' last purchases by page: page and amount.

        They are the user's previous purchase, which no longer counts, and this one; one change if both have the same
        page.
        """
        latest: dict[bytes, tuple[bytes, int]] = {}
        for key, value, _ in self.purchases():
            row = orjson.loads(value)
            page, amount = row["page"].encode(), row["amount"]
            old_page, old_amount = latest.get(key, (page, 0))
            latest[key] = page, amount
            if page == old_page:
                yield page, amount - old_amount
            else:
                yield old_page, -old_amount
                yield page, amount

    def sums_by_page(self) -> dict[bytes, int]:
        """Return the sum of users' last purchases by page."""
        sums: dict[bytes, int] = defaultdict(int)
        for page, amount in self.page_changes():
            sums[page] += amount
        return sums

    def totals(self) -> dict[bytes, bytes]:
        """Return number and sum of the purchases by key, as JSON."""
        numbers: Counter[bytes] = Counter()
        sums: Counter[bytes] = Counter()
        for key, value, _ in self.purchases():
            numbers[key] += 1
            sums[key] += orjson.loads(value)["amount"]
        return {key: orjson.dumps({"n": number, "sum": sums[key]}) for key, number in numbers.items()}

    def doubled_purchases(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the expected output of map and filter: purchases of an odd amount, with its double as ``x``."""
        for key, value, _ in self.purchases():
            row: dict[str, Any] = orjson.loads(value)
            if row["amount"] % 2:
                yield key, orjson.dumps({**row, "x": row["amount"] * 2})

    def located_purchases(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the expected join with the users: each purchase with its user's ``city``."""
        for (key, value, _), user in zip(self.purchases(), self.users(), strict=True):
            yield key, value[:-1] + b',"city":"%b"}' % _city(user)

    def last_located_purchases(self) -> dict[bytes, bytes]:
        """Return the last of these by key."""
        return dict(self.located_purchases())

    def user_rows(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield key, value and timestamp (ms) of each row of the users, which are older than all purchases."""
        for user in range(self.keys):
            yield b"k%06d" % user, b'{"name":"n%06d","city":"%b"}' % (user, _city(user)), FIRST_TIMESTAMP_MS - 1

    def load_payments(self, bootstrap_servers: str) -> None:
        """Write all payments to their topic, unless they exist; raises KafkaException."""
        load_topic(bootstrap_servers, self.payments_topic, self.payments(), (self.records + 1) // 2, codec=self.codec)

    def load(self, bootstrap_servers: str) -> None:
        """Write all purchases and users to their topics, unless they exist; raises KafkaException."""
        load_topic(bootstrap_servers, self.table, self.user_rows(), self.keys, codec=self.codec)
        load_topic(bootstrap_servers, self.topic, self.purchases(), self.records, codec=self.codec)


def load_topic(
    bootstrap_servers: str,
    topic: str,
    rows: Iterable[tuple[bytes, bytes, int]],
    records: int,
    partitions: int = PARTITIONS,
    codec: str = CODEC,
) -> None:
    """Write rows (key, value, timestamp in ms) to a topic, unless they exist; raises KafkaException."""
    if stored_records(bootstrap_servers, topic) == records:
        return
    recreate_topic(bootstrap_servers, topic, partitions)
    append(bootstrap_servers, topic, rows, records, codec)


def append(
    bootstrap_servers: str, topic: str, rows: Iterable[tuple[bytes, bytes, int]], records: int, codec: str = CODEC
) -> None:
    """Write this many rows (key, value, timestamp in ms) to the end of a topic; raises KafkaException."""
    producer = make_producer(bootstrap_servers, codec=codec)
    what = f"Writing {records:,} records to {topic}"
    for key, value, timestamp in track(rows, what, records, console=Console(stderr=True)):
        produce(producer, topic, key, value, timestamp)
    if producer.flush(FLUSH_TIMEOUT_SECONDS):
        raise KafkaException(f"not all records could be written to {topic}")


def make_producer(bootstrap_servers: str, linger_ms: int = 50, codec: str = CODEC) -> Producer:
    """Return a producer with Java's partitioner."""
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": linger_ms,
            "batch.size": 262_144,
            "compression.type": codec,
            "queue.buffering.max.messages": 500_000,
            "log_level": 3,
        }
    )


def recreate_topic(bootstrap_servers: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Create an empty topic, and wait until its leaders serve it; raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    if topic in topic_names(admin):
        delete_topics(admin, topic)
    # The input is dated to 2023: by default a topic keeps a week.
    create_topics(admin, NewTopic(topic, partitions, 1, config={"retention.ms": "-1"}))


def stored_records(bootstrap_servers: str, topic: str) -> int:
    """Return how many records a topic holds; 0 if there is no such topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "log_level": 3})
    try:
        found = consumer.list_topics(timeout=ADMIN_TIMEOUT_SECONDS).topics.get(topic)
        partitions = [TopicPartition(topic, number) for number in found.partitions] if found else []
        return sum(high - low for low, high in map(consumer.get_watermark_offsets, partitions))
    finally:
        consumer.close()


def _city(user: int) -> bytes:
    return b"c%03d" % (user % 500)


def _totals(number: int, amount: int) -> bytes:
    return b'{"n":%d,"sum":%d}' % (number, amount)


def _paid(purchase: bytes, method: bytes) -> bytes:
    return purchase[:-1] + b',"method":"%b"}' % method


def _json(number: int, user: int) -> bytes:
    row = b'{"user":"u%06d","amount":%d,"page":"/p/%d","ts":%d}'
    return row % (user, number % 1000, number % 97, FIRST_TIMESTAMP_MS + number)


def produce(producer: Producer, topic: str, key: bytes, value: bytes, timestamp: int) -> None:
    """Write a record by its key; waits while the local queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, timestamp=timestamp)
        except BufferError:
            producer.poll(0.05)
        else:
            return

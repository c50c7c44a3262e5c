"""The in-memory broker behaves like a real one: the same requests to both get equal responses.

Each sequence of requests is sent to both, in the oldest, the newest and a version between. Fields are compared one by
one; only values that each broker chooses (ids, addresses) are replaced by the order in which they appear.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c

from penstock.clients.protocol.schema import SchemaApi
from penstock.testing.broker import EmbeddedKafka
from penstock.testing.broker.apis import SERVED
from penstock.testing.broker.record_batches import NewRecord, batch_of, read_batches
from tests.brokers import ACCESS_CONTROL, SecuredBroker, SmallBroker
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

BY_NAME = {served.api.name: served for served in SERVED.values()}
#: Values that a broker chooses itself.
OWN = {"producer_id", "member_id", "leader", "topic_id", "cluster_id", "host", "port", "session_id", "client_host"}
#: Settings may have other defaults, which are compared elsewhere; a real broker has more of them.
LEFT_OUT = {"api_keys", "configs", "rack", "supported_features", "finalized_features", "finalized_features_epoch"}
#: Null values, where they are not the usual ones.
NOTHING: dict[str, tuple[Any, ...]] = {"producer_id": (-1,)}
#: Lists that brokers return in any order; members are compared without their ids.
UNORDERED = {"members", "results_by_partition", "source_topics", "entity"}
Body = dict[str, Any]
AGES = ("oldest", "middle", "newest")
#: INVALID_REPLICATION_FACTOR: no broker takes a replica.
FENCED = 38
#: Real brokers beside that of the run.
OLDER = ("3.9.1", "4.0.1")


class Change(NamedTuple):
    """A field whose value differs in older brokers. until: the last version with the old value."""

    until: str
    api: str
    field: str
    before: Any
    now: Any
    why: str


TOO_MANY_REPLICAS = (
    "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because only 1 "
    "broker(s) are registered"
)
#: Differences of older brokers from the in-memory one, which is like the newest.
CHANGES = (
    Change(
        "4.0.1",
        "CreateTopics",
        "topics.error_message",
        f"{TOO_MANY_REPLICAS}.",
        f"{TOO_MANY_REPLICAS} or some brokers have all their log directories cordoned.",
        "log directories can be cordoned (KIP-1066)",
    ),
    Change(
        "3.9.1",
        "DescribeGroups",
        "members.assignment",
        b"",
        b"all",
        "the coordinator of Kafka 4 describes assignments during a rebalance, too",
    ),
)


def has_changed(version: str, api: str, found: Difference) -> bool:
    """Return True if a difference to a broker of this version is known."""
    return any(
        (change.api, change.field, change.before, change.now) == (api, found.field, found.real, found.ours)
        and order(version) <= order(change.until)
        for change in CHANGES
    )


def order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class Talk:
    """A sequence of requests to one broker over several connections. age: the versions it uses.

    other: the sequence that it repeats with another broker: it uses the same versions.
    """

    def __init__(self, address: str, age: str, names: Callable[[str], str], other: Talk | None = None) -> None:
        self._address = address.partition(",")[0].rpartition(":")
        self._age = age
        self._sockets: dict[str, socket.socket] = {}
        self._waiting: list[tuple[str, SchemaApi, int]] = []
        self._seen: dict[Any, str] = {}
        self.name = names
        self.answers: list[tuple[str, int, Any]] = []
        found = self.ask("ApiVersions", version=3, keep=False, client_software_name="talk", client_software_version="1")
        versions = {one.api_key: (one.min_version, one.max_version) for one in found.api_keys}
        self._theirs: dict[int, tuple[int, int]] = other._theirs if other else versions

    def version(self, name: str) -> int:
        """Return the version of an API for this age, one that both brokers support."""
        served = BY_NAME[name]
        low, high = self._theirs[served.api.key]
        low, high = max(low, served.lowest), min(high, served.api.highest)
        return {"oldest": low, "newest": high, "middle": (low + high) // 2}[self._age]

    def keep(self, name: str, found: Any) -> None:
        """Keep a value made from several responses."""
        self.answers.append((name, self.version(name), self._plain(found)))

    def send(self, name: str, by: str = "", version: int | None = None, **body: Any) -> None:
        """Send a request on a separate connection for each ``by``."""
        api, used = BY_NAME[name].api, self.version(name) if version is None else version
        data = api(**body).encode(used, len(self._waiting), "talk")
        self._socket(by).sendall(len(data).to_bytes(4, "big") + data)
        self._waiting.append((by, api, used))

    def hear(self, by: str = "", keep: bool = True) -> SimpleNamespace:
        """Receive the next response on a connection."""
        at = next(number for number, one in enumerate(self._waiting) if one[0] == by)
        _, api, version = self._waiting.pop(at)
        size = int.from_bytes(self._read(by, 4), "big")
        answer = api.decode(self._read(by, size), version)
        if keep:
            self.answers.append((api.name, version, self._plain(answer)))
        return answer

    def ask(
        self, name: str, by: str = "", version: int | None = None, keep: bool = True, **body: Any
    ) -> SimpleNamespace:
        """Send a request and return its response."""
        self.send(name, by, version, **body)
        return self.hear(by, keep)

    def _socket(self, by: str) -> socket.socket:
        if by not in self._sockets:
            host, _, port = self._address
            self._sockets[by] = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        return self._sockets[by]

    def _read(self, by: str, size: int) -> bytes:
        found = b""
        while len(found) < size:
            some = self._socket(by).recv(size - len(found))
            assert some, f"the connection was closed instead of the response to {self.answers[-1:]}"
            found += some
        return found

    def _plain(self, value: Any, field: str = "") -> Any:
        if isinstance(value, SimpleNamespace):
            return {name: self._plain(one, name) for name, one in vars(value).items() if name not in LEFT_OUT}
        if isinstance(value, list):
            found = [self._plain(one, field) for one in value]
            if value and hasattr(value[0], "isr_nodes"):  # Metadata's partitions: Kafka 4.0 has no order
                return sorted(found, key=lambda one: int(one["partition_index"]))
            return sorted(found, key=_order) if field in UNORDERED else found
        if field in OWN and value not in NOTHING.get(field, (None, -1, "", 0, bytes(16))):
            return self._seen.setdefault(
                (field if field != "leader" else "member_id", value), f"{field} {len(self._seen)}"
            )
        if field == "records":
            return [(one.base, one.last, one.leader_epoch, one.attributes) for one in read_batches(value or b"")]
        return value

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()


def _order(entry: Any) -> str:
    if "member_id" in entry:
        entry["member_id"] = ""
    return repr(entry)


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        yield kafka


def topics_made(talk: Talk, **partitions: int) -> list[str]:
    """Create topics and return their names."""
    names = [talk.name(purpose) for purpose in partitions]
    topics = [
        {"name": name, "num_partitions": count, "replication_factor": 1}
        for name, count in zip(names, partitions.values(), strict=True)
    ]

    def are_made() -> bool:
        made = talk.ask("CreateTopics", topics=topics).topics
        if all(topic.error_code != FENCED for topic in made):
            return True
        talk.answers.pop()  # for a moment: the broker got no CPU for some seconds
        return False

    eventually(are_made, f"{names} can be created")
    for name, count in zip(names, partitions.values(), strict=True):
        eventually(lambda name=name, count=count: led(talk, name) == count, f"{name} has leaders")  # type: ignore[misc]
    return names


def topics_to_assign(talk: Talk, **partitions: int) -> list[str]:
    """Create topics that group coordinators know, and return their names."""
    names = topics_made(talk, **partitions)
    eventually(lambda: are_assigned(talk, names), f"the group coordinator knows {names}")
    return names


def are_assigned(talk: Talk, names: Sequence[str]) -> bool:
    """Return whether a new consumer group gets these topics: its coordinator learns of them after the leaders."""
    about: Body = {"group_id": talk.name("probe"), "member_id": "probe"}
    if not found_coordinator(talk, about["group_id"]):
        return False
    joined = talk.ask(
        "ConsumerGroupHeartbeat",
        keep=False,
        **about,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=list(names),
        topic_partitions=[],
    )
    if joined.error_code:
        return False
    talk.ask("ConsumerGroupHeartbeat", keep=False, **about, member_epoch=-1)
    return len(joined.assignment.topic_partitions) == len(names)


def led(talk: Talk, name: str) -> int:
    """Return how many partitions of a topic have leaders that know it: brokers learn of it with a delay."""
    found = talk.ask("Metadata", keep=False, version=9, topics=[{"name": name}]).topics[0]
    ends = parts(name, *range(len(found.partitions)), timestamp=-1)
    answers = talk.ask("ListOffsets", keep=False, version=5, topics=ends).topics
    return sum(one.error_code == 0 for answer in answers for one in answer.partitions)


def id_of(talk: Talk, name: str) -> bytes:
    found: bytes = talk.ask("Metadata", keep=False, version=12, topics=[{"name": name}]).topics[0].topic_id
    return found


def produced(
    talk: Talk, topic: str, data: bytes, number: int = 0, transactional_id: str | None = None, acks: int = -1
) -> SimpleNamespace:
    """Write a batch and return the response."""
    by_id = talk.version("Produce") >= 13
    named: Body = {"topic_id": id_of(talk, topic)} if by_id else {"name": topic}
    part: Body = {"index": number, "records": data}
    body: Body = {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 10_000}
    answer = talk.ask("Produce", **body, topic_data=[{**named, "partition_data": [part]}])
    found: SimpleNamespace = answer.responses[0].partition_responses[0]
    return found


def fetched(talk: Talk, topic: str, offset: int, number: int = 0, by: str = "", **body: Any) -> SimpleNamespace:
    by_id = talk.version("Fetch") >= 13
    named: Body = {"topic_id": id_of(talk, topic)} if by_id else {"topic": topic}
    part: Body = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    given: Body = {"max_wait_ms": 10, "min_bytes": 1, "isolation_level": 0, **body}
    return talk.ask("Fetch", by, topics=[{**named, "partitions": [part]}], **given)


def batch(*values: bytes, time: int = 1_700_000_000_000, **identity: int) -> bytes:
    """Return a record batch; identity: see as_producer."""
    made = batch_of([NewRecord(time + number, b"k%d" % number, value) for number, value in enumerate(values)]).data
    return as_producer(made, **identity) if identity else made


def as_producer(data: bytes, producer_id: int, epoch: int, sequence: int, transactional: int = 0) -> bytes:
    """Return a batch as written by an idempotent or transactional producer."""
    changed = bytearray(data)
    struct.pack_into(">h", changed, 21, 0b1_0000 if transactional else 0)
    struct.pack_into(">qhi", changed, 43, producer_id, epoch, sequence)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def parts(topic: str, *numbers: int, **each: Any) -> list[dict[str, Any]]:
    """Return the partitions of a topic in the form of most requests."""
    return [{"name": topic, "partitions": [{"partition_index": number, **each} for number in numbers]}]


class Difference(NamedTuple):
    """A difference between two responses. at: the number of the response and the path of the field."""

    at: str
    real: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.at} is {self.ours!r} instead of {self.real!r}"

    @property
    def field(self) -> str:
        return re.sub(r"\[\d+\]|^.*: \.?", "", self.at)


def differences(real: Any, ours: Any, at: str) -> Iterator[Difference]:
    if isinstance(real, dict) and isinstance(ours, dict) and real.keys() == ours.keys():
        for key in real:
            yield from differences(real[key], ours[key], f"{at}.{key}")
    elif isinstance(real, list | tuple) and isinstance(ours, list | tuple) and len(real) == len(ours):
        for number, pair in enumerate(zip(real, ours, strict=True)):
            yield from differences(*pair, f"{at}[{number}]")
    elif real != ours:
        yield Difference(at, real, ours)


def read_on(talk: Talk, topic: str, isolation_level: int = 0) -> None:
    """Read a partition to its end: the size of each response is a broker's own choice."""
    offset, found, aborted = 0, [], set()
    while True:
        by_id = talk.version("Fetch") >= 13
        named: Body = {"topic_id": id_of(talk, topic)} if by_id else {"topic": topic}
        part: Body = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        body: Body = {"max_wait_ms": 10, "min_bytes": 1, "isolation_level": isolation_level}
        answer = talk.ask("Fetch", keep=False, topics=[{**named, "partitions": [part]}], **body)
        read = answer.responses[0].partitions[0]
        batches = list(read_batches(read.records))
        found += [(one.base, one.last, one.attributes) for one in batches]
        aborted |= {one.first_offset for one in read.aborted_transactions or ()}
        end = read.last_stable_offset if isolation_level else read.high_watermark
        if offset >= end:
            break
        assert batches, f"nothing at {offset} before {end}"
        offset = batches[-1].last + 1
    talk.keep("Fetch", [*found, sorted(aborted), read.high_watermark, read.last_stable_offset, read.log_start_offset])


Conversation = Callable[[Talk], None]
CONVERSATIONS: list[Conversation] = []
#: Fields that only brokers since a version can have.
SINCE: dict[Conversation, str] = {}


def conversation(talked: Conversation) -> Conversation:
    CONVERSATIONS.append(talked)
    return talked


def conversation_since(version: str) -> Callable[[Conversation], Conversation]:
    def added(talked: Conversation) -> Conversation:
        SINCE[talked] = version
        return conversation(talked)

    return added


@conversation
def of_topics(talk: Talk) -> None:
    (topic,) = topics_made(talk, one=3)
    talk.ask("Metadata", topics=[{"name": topic}])
    talk.ask("Metadata", topics=[{"name": talk.name("missing")}], allow_auto_topic_creation=False)
    for wrong in ("", ".", "a b", "x" * 250):
        talk.ask("CreateTopics", topics=[{"name": wrong, "num_partitions": 1, "replication_factor": 1}])
    for body in (
        {"name": topic, "num_partitions": 1, "replication_factor": 1},
        {"name": talk.name("none"), "num_partitions": 0, "replication_factor": 1},
        {"name": talk.name("none"), "num_partitions": 1, "replication_factor": 0},
        {"name": talk.name("none"), "num_partitions": 1, "replication_factor": 3},
        {
            "name": talk.name("none"),
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": "x", "value": "1"}],
        },
    ):
        talk.ask("CreateTopics", topics=[body])
    twice: Body = {"name": talk.name("twice"), "num_partitions": 1, "replication_factor": 1}
    talk.ask("CreateTopics", topics=[twice, twice])
    for count in (2, 3, 5):
        talk.ask("CreatePartitions", topics=[{"name": topic, "count": count}], timeout_ms=10_000)
    talk.ask("CreatePartitions", topics=[{"name": talk.name("missing"), "count": 2}], timeout_ms=10_000)


@conversation
def of_settings(talk: Talk) -> None:
    (topic,) = topics_made(talk, one=1)
    of_it: Body = {"resource_type": 2, "resource_name": topic}
    alter = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    talk.ask("IncrementalAlterConfigs", resources=[{**of_it, "configs": alter}])
    talk.ask("IncrementalAlterConfigs", resources=[{**of_it, "resource_name": talk.name("missing"), "configs": alter}])
    wrong = [{"name": "no.such.setting", "config_operation": 0, "value": "1000"}]
    talk.ask("IncrementalAlterConfigs", resources=[{**of_it, "configs": wrong}])
    talk.ask("DescribeConfigs", resources=[{**of_it, "configuration_keys": ["retention.ms"]}])
    talk.ask("DescribeConfigs", resources=[{"resource_type": 2, "resource_name": talk.name("missing")}])


@conversation
def of_records(talk: Talk) -> None:
    (topic,) = topics_made(talk, one=2)
    produced(talk, topic, batch(b"a", b"b"))
    produced(talk, topic, batch(b"c", time=1_700_000_005_000), number=0)
    produced(talk, topic, batch(b"d"), number=7)
    produced(talk, topic, batch(b"e"), acks=5)
    damaged = bytearray(batch(b"f"))
    damaged[-2] ^= 1
    produced(talk, topic, bytes(damaged))
    fetched(talk, topic, 0)
    fetched(talk, topic, 1)
    fetched(talk, topic, 3)
    fetched(talk, topic, 9)
    fetched(talk, topic, 0, number=5)
    fetched(talk, topic, 0, isolation_level=1)
    fetched(talk, topic, 0, max_bytes=1)
    for timestamp in (-1, -2, 0, 1_700_000_000_001, 1_700_000_000_002, 1_700_000_009_000):
        talk.ask("ListOffsets", topics=parts(topic, 0, timestamp=timestamp))
    if talk.version("ListOffsets") >= 7:
        talk.ask("ListOffsets", topics=parts(topic, 0, timestamp=-3))
    talk.ask("ListOffsets", topics=parts(topic, 4, timestamp=-1))
    talk.ask("ListOffsets", topics=parts(talk.name("missing"), 0, timestamp=-1))
    epochs = [{"topic": topic, "partitions": [{"partition": 0, "leader_epoch": epoch} for epoch in (0, 3)]}]
    talk.ask("OffsetForLeaderEpoch", topics=epochs)
    talk.ask("DeleteRecords", topics=parts(topic, 0, offset=2), timeout_ms=10_000)
    talk.ask("DeleteRecords", topics=parts(topic, 0, offset=99), timeout_ms=10_000)
    fetched(talk, topic, 0)
    fetched(talk, topic, 2)
    talk.ask("ListOffsets", topics=parts(topic, 0, timestamp=-2))


@conversation
def of_refused_records(talk: Talk) -> None:
    now = int(time.time() * 1000)
    (topic,) = topics_made(talk, one=1)
    produced(talk, topic, batch(b"x" * 2_000_000, time=now))
    keys = [{"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]
    compacted: Body = {"resource_type": 2, "resource_name": topic, "configs": keys}
    talk.ask("IncrementalAlterConfigs", resources=[compacted])

    def is_refused() -> bool:
        answer = talk.ask("Produce", keep=False, **keyless(talk, topic))
        return bool(answer.responses[0].partition_responses[0].error_code)

    eventually(is_refused, "the broker knows the topic's new policy")
    talk.ask("Produce", **keyless(talk, topic))


def keyless(talk: Talk, topic: str) -> dict[str, Any]:
    by_id = talk.version("Produce") >= 13
    named: Body = {"topic_id": id_of(talk, topic)} if by_id else {"name": topic}
    data = batch_of([NewRecord(1_700_000_000_000, b"k", b"v"), NewRecord(1_700_000_000_000, None, b"v")]).data
    return {
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{**named, "partition_data": [{"index": 0, "records": data}]}],
    }


@conversation
def of_idempotent_producers(talk: Talk) -> None:
    (topic,) = topics_made(talk, one=1)
    me = begun(talk, None)["producer_id"]
    produced(talk, topic, batch(b"a", producer_id=me, epoch=0, sequence=0))
    produced(talk, topic, batch(b"b", b"c", producer_id=me, epoch=0, sequence=1))
    produced(talk, topic, batch(b"b", b"c", producer_id=me, epoch=0, sequence=1))  # again
    produced(talk, topic, batch(b"d", producer_id=me, epoch=0, sequence=9))
    produced(talk, topic, batch(b"e", producer_id=me, epoch=1, sequence=4))
    produced(talk, topic, batch(b"f", producer_id=me, epoch=1, sequence=0))
    produced(talk, topic, batch(b"g", producer_id=me, epoch=0, sequence=3))
    fetched(talk, topic, 0)


@conversation
def of_transactions(talk: Talk) -> None:
    (topic,) = topics_made(talk, one=1)
    id_, group = talk.name("producer"), talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    me = begun(talk, id_)
    for number, committed in enumerate((True, False, True)):
        if talk.version("Produce") < 12:
            talk.ask("AddPartitionsToTxn", **me, topics=[{"name": topic, "partitions": [0]}])
        identity: Body = {"producer_id": me["producer_id"], "epoch": me["producer_epoch"], "transactional": 1}
        produced(talk, topic, batch(b"x", **identity, sequence=0 if new(talk) else number), transactional_id=id_)
        read_on(talk, topic, isolation_level=1)
        if talk.version("TxnOffsetCommit") < 5:
            talk.ask("AddOffsetsToTxn", **me, group_id=group)
        talk.ask("TxnOffsetCommit", **me, group_id=group, topics=parts(topic, 0, committed_offset=5 + number))
        positions(talk, group, topic)
        end: Body = {**me, "committed": committed}
        ended = talk.ask("EndTxn", **end)
        if new(talk):
            me |= {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}
        eventually(partial(settled, talk, group, topic, end), "the transaction is complete")
        positions(talk, group, topic)
        read_on(talk, topic, isolation_level=1)
    talk.ask("EndTxn", **me, committed=True)
    talk.ask("EndTxn", **{**me, "producer_epoch": me["producer_epoch"] + 7}, committed=True)
    talk.ask("EndTxn", **{**me, "producer_id": 1 << 40}, committed=True)
    talk.ask("AddPartitionsToTxn", **me, topics=[{"name": topic, "partitions": [0, 9]}])
    read_on(talk, topic)


@conversation
def of_producers_that_are_replaced(talk: Talk) -> None:
    id_ = talk.name("producer")
    former, latest = begun(talk, id_), begun(talk, id_)
    for me in (former, latest, latest):  # the former one is fenced; the last request is repeated
        if talk.version("InitProducerId") < 3:
            me = {"transactional_id": id_}
        talk.ask("InitProducerId", **me, transaction_timeout_ms=60_000)


def new(talk: Talk) -> bool:
    """True if each transaction has its own epoch."""
    return talk.version("EndTxn") >= 5


def begun(talk: Talk, transactional_id: str | None) -> dict[str, Any]:
    """Return the identity of a producer; its coordinator may have to be loaded first."""
    talk.ask("FindCoordinator", keep=False, version=4, key_type=1, coordinator_keys=[transactional_id or "none"])
    found: list[SimpleNamespace] = []

    def answered() -> bool:
        body: Body = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
        found[:] = [talk.ask("InitProducerId", keep=False, **body)]
        return bool(found[0].error_code == 0)

    eventually(answered, "there is a coordinator")
    return {
        "transactional_id": transactional_id,
        "producer_id": found[0].producer_id,
        "producer_epoch": found[0].producer_epoch,
    }


def positions(talk: Talk, group: str, topic: str, keep: bool = True, stable: bool = False) -> SimpleNamespace:
    asked = [{"name": topic, "partition_indexes": [0, 1]}]
    if talk.version("OffsetFetch") >= 8:
        return talk.ask("OffsetFetch", keep=keep, groups=[{"group_id": group, "topics": asked}], require_stable=stable)
    stable = stable and talk.version("OffsetFetch") >= 7
    return talk.ask("OffsetFetch", keep=keep, group_id=group, topics=asked, require_stable=stable)


def settled(talk: Talk, group: str, topic: str, end: Body) -> bool:
    """True if neither offsets, partition nor coordinator have an open transaction: markers are written a moment later.

    end: the request that ended it, which the coordinator refuses to repeat until it has heard that they are written.
    """
    body: Body = {
        "groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}],
        "require_stable": True,
    }
    offsets = talk.ask("OffsetFetch", keep=False, version=8, **body).groups[0].topics[0].partitions[0]
    ends = [
        talk.ask("ListOffsets", keep=False, version=5, isolation_level=level, topics=parts(topic, 0, timestamp=-1))
        for level in (0, 1)
    ]
    uncommitted, committed = (end.topics[0].partitions[0].offset for end in ends)
    if offsets.error_code or uncommitted != committed:
        return False
    return bool(talk.ask("EndTxn", keep=False, **end).error_code == 0)


@conversation
def of_groups(talk: Talk) -> None:
    (topic,) = topics_made(talk, one=1)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    wrong: Body
    for wrong in ({"session_timeout_ms": 1}, {"protocols": []}, {"protocol_type": ""}, {"group_id": ""}):
        talk.ask("JoinGroup", **joining(group, "", **wrong))
    talk.ask("Heartbeat", group_id=group, generation_id=1, member_id="nobody")
    one = talk.ask("JoinGroup", **joining(group, "")).member_id
    joined = talk.ask("JoinGroup", **joining(group, one))
    talk.ask("Heartbeat", group_id=group, generation_id=joined.generation_id, member_id=one)
    synced(talk, group, joined, {one: b"all"})
    for generation in (1, 2):
        talk.ask("Heartbeat", group_id=group, generation_id=generation, member_id=one)
    commits(talk, group, topic, one)
    other = talk.ask("JoinGroup", by="other", **joining(group, "")).member_id
    talk.send("JoinGroup", by="other", **joining(group, other))

    def heartbeat() -> int:
        body: Body = {"group_id": group, "generation_id": 1, "member_id": one}
        return int(talk.ask("Heartbeat", keep=False, **body).error_code)

    eventually(lambda: heartbeat() == 27, "the group rebalances")
    described(talk, group)
    talk.ask("DescribeGroups", groups=[talk.name("no-group")])
    joined = talk.ask("JoinGroup", **joining(group, one))
    follower = talk.hear("other")
    talk.send("SyncGroup", by="other", **sync(group, follower, other, {}))
    talk.ask("SyncGroup", **sync(group, joined, one, {one: b"first", other: b"second"}))
    talk.hear("other")
    described(talk, group)
    leave(talk, group, other)
    eventually(lambda: heartbeat() in (27, 22), "the group rebalances")
    joined = talk.ask("JoinGroup", **joining(group, one))
    synced(talk, group, joined, {one: b"all"})
    leave(talk, group, one)
    leave(talk, group, "nobody")
    for one_group in (group, talk.name("no-group")):
        talk.ask("DeleteGroups", groups_names=[one_group])


def described(talk: Talk, group: str) -> None:
    """Describe a group; its members have no order."""
    found = talk.ask("DescribeGroups", keep=False, groups=[group]).groups[0]
    members = sorted((one.client_id, one.member_metadata, one.member_assignment) for one in found.members)
    kept = {name: getattr(found, name) for name in ("error_code", "group_state", "protocol_type", "protocol_data")}
    named = [dict(zip(("client", "metadata", "assignment"), one, strict=True)) for one in members]
    talk.keep("DescribeGroups", {**kept, "members": named})


def found_coordinator(talk: Talk, group: str) -> bool:
    answer = talk.ask("FindCoordinator", keep=False, version=4, key_type=0, coordinator_keys=[group])
    loaded = talk.ask("Heartbeat", keep=False, group_id=group, generation_id=1, member_id="nobody").error_code
    # While a coordinator loads its groups, it answers any heartbeat with 0.
    return bool(answer.coordinators[0].error_code == 0 and loaded not in (0, 14, 15, 16))


def joining(group: str, member: str, **other: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"one"}, {"name": "sticky", "metadata": b"two"}],
        **other,
    }


def sync(group: str, joined: SimpleNamespace, member: str, parts_: dict[str, bytes]) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": member,
        "protocol_type": "consumer",
        "protocol_name": joined.protocol_name,
        "assignments": [{"member_id": one, "assignment": part} for one, part in parts_.items()],
    }


def synced(talk: Talk, group: str, joined: SimpleNamespace, parts_: dict[str, bytes]) -> None:
    (member,) = parts_
    talk.ask("SyncGroup", **{**sync(group, joined, member, parts_), "generation_id": joined.generation_id + 5})
    talk.ask("SyncGroup", **sync(group, joined, "nobody", parts_))
    talk.ask("SyncGroup", **sync(group, joined, member, parts_))


def leave(talk: Talk, group: str, member: str) -> None:
    if talk.version("LeaveGroup") >= 3:
        talk.ask("LeaveGroup", group_id=group, members=[{"member_id": member}])
    else:
        talk.ask("LeaveGroup", group_id=group, member_id=member)


def commits(talk: Talk, group: str, topic: str, member: str) -> None:
    offsets: Body = {"committed_offset": 3, "committed_metadata": "m"}
    for generation, who in ((1, member), (9, member), (1, "nobody"), (-1, "")):
        body: Body = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": who}
        talk.ask("OffsetCommit", **body, topics=parts(topic, 0, **offsets))
    body = {"group_id": group, "generation_id_or_member_epoch": 1, "member_id": member}
    talk.ask("OffsetCommit", **body, topics=parts(topic, 0, committed_offset=4, committed_metadata="x" * 5000))
    positions(talk, group, topic)


@conversation
def of_quotas(talk: Talk) -> None:
    user, client = talk.name("user"), talk.name("client")
    both = [{"entity_type": "user", "entity_name": user}, {"entity_type": "client-id", "entity_name": client}]
    limit = {"key": "producer_byte_rate", "value": 1000.0, "remove": False}
    for entity, ops in (
        (both, [limit, {**limit, "key": "consumer_byte_rate", "value": 500.0}]),
        (both, [{**limit, "value": 0.5}]),
        (both, [{**limit, "value": -5.0}]),
        (both[:1], [limit]),
        (both[1:], [limit]),
        (both, [{**limit, "remove": True}]),
        (both, [{**limit, "key": "no_such_rate"}]),
        ([], [limit]),
        ([{"entity_type": "planet", "entity_name": user}], [limit]),
    ):
        talk.ask("AlterClientQuotas", entries=[{"entity": entity, "ops": ops}])

    def described(*components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
        asked = [dict(zip(("entity_type", "match_type", "match"), one, strict=True)) for one in components]
        entries = talk.ask("DescribeClientQuotas", keep=False, components=asked, strict=strict).entries or ()
        plain = [
            [sorted((vars(part) for part in parts_), key=repr) for parts_ in vars(one).values()] for one in entries
        ]
        return sorted((one for one in plain if user in repr(one) or client in repr(one)), key=repr)

    eventually(
        lambda: [len(limits) for _, limits in described()] == [1, 1, 1], "the limits are known, also the removal"
    )
    for components in (
        [("user", 0, user)],
        [("user", 0, user), ("client-id", 0, client)],
        [("user", 0, user), ("client-id", 2, None)],
        [("user", 0, user), ("client-id", 1, None)],
        [("client-id", 2, None)],
        [("user", 2, None)],
    ):
        for strict in (False, True):
            talk.keep("DescribeClientQuotas", described(*components, strict=strict))
    every = {"key": "producer_byte_rate", "value": 0.0, "remove": True}
    gone = [every, {**every, "key": "consumer_byte_rate"}]
    for entity in (both, both[:1], both[1:]):
        talk.ask("AlterClientQuotas", entries=[{"entity": entity, "ops": gone}])
    eventually(lambda: not described(), "the limits are gone")


@conversation
def of_access_control_that_there_is_not(talk: Talk) -> None:
    talk.ask("DescribeAcls", **acl_filter())
    talk.ask("CreateAcls", creations=[forbidding(TOPIC, "a")])
    talk.ask("DeleteAcls", filters=[acl_filter()])


@conversation
def of_offsets_without_members(talk: Talk) -> None:
    (topic,) = topics_made(talk, one=2)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    positions(talk, group, topic)
    body: Body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    talk.ask("OffsetCommit", **body, topics=parts(topic, 0, committed_offset=7, committed_leader_epoch=0))
    talk.ask("OffsetCommit", **body, topics=parts(topic, 5, committed_offset=7))
    positions(talk, group, topic)
    talk.ask("DeleteGroups", groups_names=[group])
    positions(talk, group, topic)


class ConsumerMember:
    """A member of a consumer group that behaves like a client: it reports its partitions, and accepts its
    assignment.
    """

    def __init__(self, talk: Talk, group: str, member_id: str, **about: Any) -> None:
        self.talk, self.group, self.id, self.about = talk, group, member_id, about
        self.epoch = 0
        self.owned: list[SimpleNamespace] = []

    def beat(self, keep: bool = False, **body: Any) -> SimpleNamespace:
        """Send a full heartbeat, and apply the response."""
        owned = [{"topic_id": one.topic_id, "partitions": one.partitions} for one in self.owned]
        answer = self.say(keep, rebalance_timeout_ms=60_000, topic_partitions=owned, **self.about, **body)
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = answer.assignment.topic_partitions
        return answer

    def say(self, keep: bool = True, **body: Any) -> SimpleNamespace:
        given: Body = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, **body}
        return self.talk.ask("ConsumerGroupHeartbeat", keep=keep, **given)


def settle(talk: Talk, group: str, *members: ConsumerMember) -> None:
    """Have all members send heartbeats until the group is stable, and describe it."""

    eventually(lambda: stable(talk, group, members), "the group is stable")
    talk.ask("ConsumerGroupDescribe", group_ids=[group])


def listed(talk: Talk, *groups: str) -> None:
    """List groups; other groups are left out."""
    found = talk.ask("ListGroups", keep=False).groups
    talk.keep("ListGroups", sorted((vars(one) for one in found if one.group_id in groups), key=repr))


def committed_by_both(talk: Talk, group: str, topic: str, before: int) -> None:
    """Two members commit offsets of a partition that has moved, with the epochs before and after that."""
    for epoch in (before, before + 1):
        for member, number in (("a", 0), ("a", 3), ("b", 3)):
            body: Body = {"group_id": group, "generation_id_or_member_epoch": epoch, "member_id": member}
            talk.ask("OffsetCommit", **body, topics=parts(topic, number, committed_offset=3))


@conversation_since("4.4.0")
def of_wrong_heartbeats_of_consumers(talk: Talk) -> None:
    (topic,) = topics_to_assign(talk, one=1)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    one = ConsumerMember(talk, group, "a")
    joins: Body = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic], "topic_partitions": []}
    wrong: Body
    for wrong in (
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [{"topic_id": id_of(talk, topic), "partitions": [0]}]},
        {"subscribed_topic_names": None},
        {"server_assignor": "best"},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"member_epoch": -1},
        {"member_epoch": 1},
        {"member_epoch": 1, "member_id": ""},
    ):
        one.say(**{**joins, **wrong})
    if talk.version("ConsumerGroupHeartbeat") >= 1:
        one.say(**{**joins, "member_id": ""})
    for described in (group, talk.name("no-group"), ""):
        talk.ask("ConsumerGroupDescribe", group_ids=[described])


@conversation_since("4.4.0")
def of_consumer_groups(talk: Talk) -> None:
    (topic,) = topics_to_assign(talk, one=4)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    one, other = (ConsumerMember(talk, group, name, subscribed_topic_names=[topic]) for name in "ab")
    settle(talk, group, one)
    one.say()
    one.beat(keep=True)
    epoch_commits(talk, group, topic, one)
    settle(talk, group, one, other)
    for member in (one, other):
        member.beat(keep=True)
        member.say(member_epoch=member.epoch + 5)
        member.say(member_epoch=0, rebalance_timeout_ms=60_000, topic_partitions=[], **member.about)
        member.beat()
    epoch_commits(talk, group, topic, one)
    ConsumerMember(talk, group, "nobody").say(member_epoch=1)
    ConsumerMember(talk, group, "nobody").say(member_epoch=-1)
    talk.ask("DescribeGroups", groups=[group])
    talk.ask("DeleteGroups", groups_names=[group])
    talk.ask("Heartbeat", group_id=group, generation_id=1, member_id="a")
    listed(talk, group)
    other.say(member_epoch=-1)
    settle(talk, group, one)
    one.say(member_epoch=-1)
    talk.ask("ConsumerGroupDescribe", group_ids=[group])
    listed(talk, group)
    positions(talk, group, topic)
    talk.ask("DeleteGroups", groups_names=[group])
    talk.ask("ConsumerGroupDescribe", group_ids=[group])


def epoch_commits(talk: Talk, group: str, topic: str, member: ConsumerMember) -> None:
    """Commit and fetch offsets by member epochs."""
    for epoch, who in ((0, "a"), (-1, "a"), (9, "a"), (-1, "b"), (0, "nobody"), (-1, "")):
        now = epoch if epoch < 0 else member.epoch + epoch
        body: Body = {"group_id": group, "generation_id_or_member_epoch": now, "member_id": who}
        talk.ask("OffsetCommit", **body, topics=parts(topic, 0, 1, committed_offset=3))
        if talk.version("OffsetFetch") >= 9:
            asked: Body = {"group_id": group, "member_id": who or None, "member_epoch": now}
            topics = [{"name": topic, "partition_indexes": [0]}]
            talk.ask("OffsetFetch", groups=[{**asked, "topics": topics}])


@conversation_since("4.4.0")
def of_partitions_that_change_hands(talk: Talk) -> None:
    """A member keeps revoked partitions until it reports that it has released them."""
    (topic,) = topics_to_assign(talk, one=4)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    one, other = (ConsumerMember(talk, group, name, subscribed_topic_names=[topic]) for name in "ab")
    settle(talk, group, one)
    before = one.epoch

    def both_know() -> bool:
        other.beat()
        answer = one.say(keep=False)
        return answer.assignment is not None

    eventually(both_know, "one has to give partitions back")
    one.say()
    other.beat(keep=True)
    talk.ask("ConsumerGroupDescribe", group_ids=[group])
    for epoch in (before, other.epoch):
        body: Body = {"group_id": group, "generation_id_or_member_epoch": epoch, "member_id": "a"}
        talk.ask("OffsetCommit", **body, topics=parts(topic, 0, 3, committed_offset=3))
    settle(talk, group, one, other)
    committed_by_both(talk, group, topic, before)
    one.say(member_epoch=before, topic_partitions=[])
    one.say(member_epoch=before)


@conversation_since("4.4.0")
def of_static_consumers(talk: Talk) -> None:
    (topic,) = topics_to_assign(talk, one=2)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    about: Body = {"subscribed_topic_names": [topic], "instance_id": "i"}
    one = ConsumerMember(talk, group, "a", **about)
    settle(talk, group, one)
    successor = ConsumerMember(talk, group, "c", **about)
    successor.beat(keep=True)
    successor.say(member_epoch=1, instance_id="i")
    successor.say(member_epoch=1, instance_id="j")
    one.say(member_epoch=-2)
    one.say(member_epoch=-2, instance_id="i")
    talk.ask("ConsumerGroupDescribe", group_ids=[group])
    settle(talk, group, successor)
    one.say(instance_id="i")
    one.say()
    successor.say(member_epoch=-1, instance_id="i")
    talk.ask("ConsumerGroupDescribe", group_ids=[group])


@conversation_since("4.4.0")
def of_assignors(talk: Talk) -> None:
    """How partitions are assigned. Brokers may differ in which of two members gets which of two equal shares."""
    topics = topics_to_assign(talk, one=4, other=3)
    for assignor in ("uniform", "range"):
        for subscribed in ((topics, topics), (topics, topics[:1]), (topics[1:], topics)):
            group = talk.name(f"{assignor}-{len(subscribed[0])}{len(subscribed[1])}")
            eventually(lambda group=group: found_coordinator(talk, group), "there is a coordinator")  # type: ignore[misc]
            members = [
                ConsumerMember(talk, group, name, subscribed_topic_names=names, server_assignor=assignor)
                for name, names in zip("ab", subscribed, strict=True)
            ]
            eventually(lambda group=group, members=members: stable(talk, group, members), "the group is stable")  # type: ignore[misc]
            talk.keep("ConsumerGroupDescribe", sorted(sum(len(one.partitions) for one in m.owned) for m in members))


def stable(talk: Talk, group: str, members: Sequence[ConsumerMember]) -> bool:
    for member in members:
        member.beat()
    found = talk.ask("ConsumerGroupDescribe", keep=False, group_ids=[group]).groups[0]
    return bool(found.group_state == "Stable" and len({member.epoch for member in members}) == 1)


class StreamsMember:
    """A member of a streams group that behaves like a client: it reports its tasks, and accepts its assignment."""

    def __init__(self, talk: Talk, group: str, member_id: str, process: str, topology: Body, **about: Any) -> None:
        self.talk, self.group, self.id, self.topology = talk, group, member_id, topology
        self.about = {"process_id": process, "client_tags": [], "rebalance_timeout_ms": 60_000, **about}
        self.epoch = self.endpoint_epoch = 0
        self.tasks: dict[str, list[Body]] = {role: [] for role in ROLES}
        self.statuses: list[int] = []

    def beat(self, keep: bool = False, **body: Any) -> SimpleNamespace:
        """Send a heartbeat with the tasks, and apply the response."""
        joins: Body = {**self.about, "topology": self.topology} if self.epoch == 0 else {}
        answer = self.say(keep, **joins, **self.tasks, **body)
        if answer.error_code == 0:
            self.epoch, self.endpoint_epoch = answer.member_epoch, answer.endpoint_information_epoch
            self.statuses = [status.status_code for status in answer.status]
            if answer.active_tasks is not None:
                self.tasks = {role: [vars(one) for one in getattr(answer, role)] for role in ROLES}
        return answer

    def say(self, keep: bool = True, **body: Any) -> SimpleNamespace:
        given: Body = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "endpoint_information_epoch": self.endpoint_epoch,
            **body,
        }
        return self.talk.ask("StreamsGroupHeartbeat", keep=keep, **given)


ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")


def topology_of(source: str, group: str, **changes: Any) -> Body:
    """Return a topology that counts: it repartitions a topic, and has a store. changes: of the second sub-topology."""
    repartition, changelog = f"{group}-counts-repartition", f"{group}-counts-changelog"
    compacted = [{"key": "cleanup.policy", "value": "compact"}]
    second: Body = {
        "subtopology_id": "1",
        "repartition_source_topics": [{"name": repartition, "topic_configs": []}],
        "state_changelog_topics": [{"name": changelog, "topic_configs": compacted}],
        **changes,
    }
    first: Body = {"subtopology_id": "0", "source_topics": [source], "repartition_sink_topics": [repartition]}
    return {"epoch": 0, "subtopologies": [first, second]}


@conversation_since("4.4.0")
def of_tasks_that_change_hands(talk: Talk) -> None:
    """A task is free when its former owner reports that it has closed it."""
    (topic,) = topics_to_assign(talk, one=4)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    topology: Body = {"epoch": 0, "subtopologies": [{"subtopology_id": "0", "source_topics": [topic]}]}
    one, other = (StreamsMember(talk, group, name, name, topology) for name in "ab")
    settle_streams(talk, group, one)
    before = one.epoch

    kept: list[Body] = []

    def has_to_give() -> bool:
        other.beat()
        answer = one.say(keep=False)
        kept[:] = [vars(task) for task in answer.active_tasks or ()]
        return bool(kept)

    eventually(has_to_give, "one has to give tasks back")
    one.say()
    other.beat(keep=True)
    described_streams(talk, group)
    one.tasks["active_tasks"] = kept
    settle_streams(talk, group, one, other)
    committed_by_both(talk, group, topic, before)
    one.say(member_epoch=before, active_tasks=[], standby_tasks=[], warmup_tasks=[])
    one.say(member_epoch=before)


@conversation_since("4.4.0")
def of_static_streams_members(talk: Talk) -> None:
    (topic,) = topics_to_assign(talk, one=2)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    topology: Body = {"epoch": 0, "subtopologies": [{"subtopology_id": "0", "source_topics": [topic]}]}
    one, successor = (StreamsMember(talk, group, name, name, topology, instance_id="i") for name in "ac")
    settle_streams(talk, group, one)
    successor.beat(keep=True)
    successor.say(member_epoch=1, instance_id="i")
    successor.say(member_epoch=1, instance_id="j")
    one.say(member_epoch=-2, instance_id="i")
    described_streams(talk, group)
    settle_streams(talk, group, successor)
    one.say(instance_id="i")
    one.say()
    successor.say(member_epoch=-1, instance_id="i")
    described_streams(talk, group)


def described_streams(talk: Talk, group: str) -> None:
    talk.ask("StreamsGroupDescribe", group_ids=[group])


def settle_streams(talk: Talk, group: str, *members: StreamsMember, keep: bool = True) -> None:
    """Have all members send heartbeats until the group is stable, and describe it."""

    def is_stable() -> bool:
        for member in members:
            member.beat()
        found = talk.ask("StreamsGroupDescribe", keep=False, group_ids=[group]).groups[0]
        return bool(found.group_state == "Stable" and len({member.epoch for member in members}) == 1)

    eventually(is_stable, "the group is stable")
    talk.ask("StreamsGroupDescribe", keep=keep, group_ids=[group])


@conversation_since("4.4.0")
def of_wrong_heartbeats_of_streams(talk: Talk) -> None:
    (topic,) = topics_to_assign(talk, one=1)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    one = StreamsMember(talk, group, "a", "p", topology_of(topic, group))
    joins: Body = {**one.about, "topology": one.topology, "active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    task: Body = {"subtopology_id": "0", "partitions": [0]}
    wrong: Body
    for wrong in (
        {"group_id": ""},
        {"member_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topology": None},
        {"active_tasks": [task]},
        {"standby_tasks": [task]},
        {"warmup_tasks": [task]},
        {"warmup_tasks": None},
        {"member_epoch": -3},
        {"member_epoch": -2, "topology": None},
        {"member_epoch": -1, "topology": None},
        {"member_epoch": 1},
        {"member_epoch": 1, "topology": None},
        {"topology": topology_of(topic, group, state_changelog_topics=[{"name": "c", "partitions": 3}])},
        {"topology": topology_of(topic, group, source_topic_regex=["x.*"])},
    ):
        one.say(**{**joins, **wrong})
    for name in (group, talk.name("no-group"), ""):
        described_streams(talk, name)


@conversation_since("4.4.0")
def of_streams_groups(talk: Talk) -> None:
    (topic,) = topics_to_assign(talk, one=2)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    topology = topology_of(topic, group)
    one = StreamsMember(talk, group, "a", "p", topology)
    other = StreamsMember(talk, group, "b", "q", topology)
    (status,) = one.beat().status  # which names topics in any order
    talk.keep("StreamsGroupHeartbeat", (status.status_code, sorted(status.status_detail.replace(",", "").split())))
    settle_streams(talk, group, one)
    for name in one.topology["subtopologies"][1]["repartition_source_topics"]:
        talk.ask("Metadata", topics=[{"name": name["name"]}], allow_auto_topic_creation=False)
    one.say()
    one.beat(keep=True)
    settle_streams(talk, group, one, other)
    for member in (one, other):
        member.beat(keep=True)
        member.say(member_epoch=member.epoch + 5)
        member.say(active_tasks=[{"subtopology_id": "7", "partitions": [0]}], standby_tasks=[], warmup_tasks=[])
        member.say(active_tasks=[{"subtopology_id": "1", "partitions": [9]}], standby_tasks=[], warmup_tasks=[])
    for epoch, who in ((0, "a"), (-1, "a"), (9, "a"), (0, "nobody"), (-1, "")):
        now = epoch if epoch < 0 else one.epoch + epoch
        body: Body = {"group_id": group, "generation_id_or_member_epoch": now, "member_id": who}
        talk.ask("OffsetCommit", **body, topics=parts(topic, 0, 1, committed_offset=3))
    StreamsMember(talk, group, "c", "r", topology_of(topic, group, source_topics=[topic])).beat(keep=True)
    StreamsMember(talk, group, "nobody", "r", topology).say(member_epoch=1)
    StreamsMember(talk, group, "nobody", "r", topology).say(member_epoch=-1)
    talk.ask("DescribeGroups", groups=[group])
    talk.ask("ConsumerGroupDescribe", group_ids=[group])
    talk.ask("JoinGroup", **joining(group, ""))
    talk.ask("DeleteGroups", groups_names=[group])
    listed(talk, group)
    other.say(member_epoch=-1)
    settle_streams(talk, group, one)
    one.say(shutdown_application=True)
    one.say()
    one.say(member_epoch=-1)
    described_streams(talk, group)
    listed(talk, group)
    talk.ask("DeleteGroups", groups_names=[group])
    internal = [f"{group}-counts-{kind}" for kind in ("repartition", "changelog")]
    talk.ask("DeleteTopics", keep=False, version=5, topic_names=internal, timeout_ms=10_000)


@conversation_since("4.4.0")
def of_topics_that_streams_lack(talk: Talk) -> None:
    group, missing = talk.name("group"), talk.name("missing")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    one = StreamsMember(talk, group, "a", "p", topology_of(missing, group))
    one.beat(keep=True)
    one.beat(keep=True)
    described_streams(talk, group)
    talk.ask("CreateTopics", topics=[{"name": missing, "num_partitions": 3, "replication_factor": 1}])
    settle_streams(talk, group, one)
    internal = [f"{group}-counts-{kind}" for kind in ("repartition", "changelog")]
    talk.ask("DeleteTopics", keep=False, version=5, topic_names=internal, timeout_ms=10_000)


@conversation_since("4.4.0")
def of_topics_that_do_not_fit_streams(talk: Talk) -> None:
    two, three = topics_to_assign(talk, two=2, three=3)
    wrong: list[Body] = [
        {"source_topics": [two, three], "copartition_groups": [{"source_topics": [0, 1]}]},
        {
            "repartition_source_topics": [{"name": talk.name("given"), "partitions": 5}],
            "source_topics": [two],
            "copartition_groups": [{"source_topics": [0], "repartition_source_topics": [0]}],
        },
        {"state_changelog_topics": [{"name": three}]},
    ]
    for number, changes in enumerate(wrong):
        group = talk.name(f"group-{number}")
        eventually(lambda group=group: found_coordinator(talk, group), "there is a coordinator")  # type: ignore[misc]
        one = StreamsMember(talk, group, "a", "p", topology_of(two, group, **changes))
        one.beat(keep=True)
        described_streams(talk, group)


@conversation_since("4.4.0")
def of_standbys(talk: Talk) -> None:
    """Each process has a task once; the assignment of two tasks with equal load is a broker's own choice."""
    (topic,) = topics_to_assign(talk, one=3)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    for key, value in (("streams.num.standby.replicas", "1"), ("no.such.setting", "1")):
        configs = [{"name": key, "config_operation": 0, "value": value}]
        asked: Body = {"resource_type": 32, "resource_name": group, "configs": configs}
        talk.ask("IncrementalAlterConfigs", resources=[asked])
    topology: Body = {
        "epoch": 0,
        "subtopologies": [
            {
                "subtopology_id": "0",
                "source_topics": [topic],
                "state_changelog_topics": [{"name": f"{group}-changelog"}],
            }
        ],
    }
    members = [
        StreamsMember(talk, group, f"{process}{number}", process, topology) for process in "pq" for number in "12"
    ]
    for joined in (members[:1], members[:3], members):
        settle_streams(talk, group, *joined, keep=False)
        for role, tasks in (("active", "active_tasks"), ("standby", "standby_tasks")):
            found = [sum(len(one["partitions"]) for one in member.tasks[tasks]) for member in joined]
            talk.keep("StreamsGroupDescribe", (role, sum(found), max(found) - min(found) <= 1))
    processes = {
        process: [found for one in members if one.id[0] == process for found in numbers(one)] for process in "pq"
    }
    talk.keep("StreamsGroupDescribe", {process: sorted(found) for process, found in processes.items()})
    talk.ask("DeleteTopics", keep=False, version=5, topic_names=[f"{group}-changelog"], timeout_ms=10_000)


def numbers(member: StreamsMember) -> list[int]:
    """Return the partitions of a member's tasks."""
    return [number for role in ROLES for one in member.tasks[role] for number in one["partitions"]]


@conversation_since("4.4.0")
def of_hosts_of_streams(talk: Talk) -> None:
    """Members receive the partitions of each endpoint."""
    (topic,) = topics_to_assign(talk, one=2)
    group = talk.name("group")
    eventually(lambda: found_coordinator(talk, group), "there is a coordinator")
    topology: Body = {"epoch": 0, "subtopologies": [{"subtopology_id": "0", "source_topics": [topic]}]}
    one, other = (
        StreamsMember(talk, group, name, name, topology, user_endpoint={"host": name, "port": 1}) for name in "ab"
    )
    settle_streams(talk, group, one)
    settle_streams(talk, group, one, other)
    one.say(endpoint_information_epoch=-1)


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("talked", CONVERSATIONS, ids=lambda talked: talked.__name__)
def test_both_brokers_give_the_same_responses(
    talked: Conversation, age: str, bootstrap_servers: str, embedded: EmbeddedKafka, unique_name: Callable[[str], str]
) -> None:
    assert [one for _, one in compared(talked, age, bootstrap_servers, embedded, unique_name)] == []


def compared(
    talked: Conversation, age: str, address: str, embedded: EmbeddedKafka, unique_name: Callable[[str], str]
) -> list[tuple[str, Difference]]:
    """Send a sequence of requests to a real broker and to ours; return the differences, each with the API's name."""
    names: dict[str, str] = {}

    def name(purpose: str) -> str:
        return names.setdefault(purpose, unique_name(purpose))

    talks: list[Talk] = []
    for broker in (address, embedded.bootstrap_servers):
        talk = Talk(broker, age, name, *talks)
        talks.append(talk)
        try:
            talked(talk)
            body: Body = {"topic_names": list(names.values()), "timeout_ms": 10_000}
            talk.ask("DeleteTopics", keep=False, version=5, **body)
        finally:
            talk.close()
    real, ours = (talk.answers for talk in talks)
    assert real, "nothing was asked"
    found = []
    for number, (one, other) in enumerate(zip(real, ours, strict=True)):
        assert one[:2] == other[:2], f"answer {number}"
        found += [(one[0], each) for each in differences(one[2], other[2], f"{number}: ")]
    print(f"{len(real)} answers, {len(found)} differences", *(f"\n{api} {one}" for api, one in found))
    return found


@pytest.fixture(scope="module", params=OLDER)
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A real broker of an older Kafka: its version and its address."""
    with SmallBroker("older", tmp_path_factory.mktemp("older"), kafka=request.param) as broker:
        yield request.param, broker.bootstrap_servers


@pytest.mark.slow
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("talked", CONVERSATIONS, ids=lambda talked: talked.__name__)
def test_an_older_broker_differs_only_in_known_changes_of_kafka(
    talked: Conversation,
    age: str,
    older: tuple[str, str],
    embedded: EmbeddedKafka,
    unique_name: Callable[[str], str],
) -> None:
    version, address = older
    if order(SINCE.get(talked, version)) > order(version):
        pytest.skip(f"Kafka {SINCE[talked]} is the first that can")
    found = compared(talked, age, address, embedded, unique_name)
    assert [one for api, one in found if not has_changed(version, api, one)] == []


def forbidding(resource: int, name: str, operation: int = 2, permission: int = 2, pattern: int = 3) -> Body:
    """Return an access control list; by default it forbids all operations."""
    what = {"resource_type": resource, "resource_name": name, "resource_pattern_type": pattern}
    return {**what, "principal": ANONYMOUS, "host": "*", "operation": operation, "permission_type": permission}


ANONYMOUS = "User:ANONYMOUS"
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5


def acl_filter(**of: Any) -> Body:
    every = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1}
    return {**every, "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1, **of}


def of_access_control_lists(talk: Talk) -> None:
    (topic,) = topics_to_assign(talk, one=1)
    for wrong in (
        forbidding(TOPIC, ""),
        forbidding(CLUSTER, "another"),
        {**forbidding(TOPIC, topic), "resource_pattern_type": 2},
    ):
        talk.ask("CreateAcls", creations=[wrong])
    created = [
        forbidding(TOPIC, topic),
        forbidding(TOPIC, topic, operation=3, permission=3),
        forbidding(TOPIC, topic[:-3], pattern=4, operation=4),
    ]
    talk.ask("CreateAcls", creations=created)

    def described(**of: Any) -> list[Any]:
        found = talk.ask("DescribeAcls", keep=False, **acl_filter(**of))
        acls = [
            (one.resource_type, one.pattern_type, one.resource_name, *sorted(vars(acl).values(), key=str))
            for one in found.resources
            for acl in one.acls
        ]
        return [found.error_code, found.error_message, sorted(acls)]

    eventually(lambda: len(described(resource_name_filter=topic, pattern_type_filter=2)[2]) == 3, "the lists are known")
    for of in (
        {"resource_name_filter": topic, "pattern_type_filter": 2},
        {"resource_name_filter": topic, "pattern_type_filter": 3},
        {"resource_name_filter": topic},
        {"resource_name_filter": topic, "operation": 3},
        {"resource_name_filter": topic, "permission_type": 3},
        {"resource_name_filter": topic, "principal_filter": "User:x"},
        {"resource_name_filter": topic, "host_filter": "*"},
        {"resource_type_filter": GROUP, "resource_name_filter": topic},
    ):
        talk.keep("DescribeAcls", described(**of))
    wanted = acl_filter(resource_name_filter=topic, pattern_type_filter=2)
    deleted = talk.ask("DeleteAcls", keep=False, filters=[wanted]).filter_results[0]
    talk.keep("DeleteAcls", sorted((vars(one) for one in deleted.matching_acls), key=repr))
    eventually(lambda: not described(resource_name_filter=topic, pattern_type_filter=2)[2], "the lists are gone")
    talk.ask("DeleteAcls", filters=[wanted])


def of_what_is_forbidden(talk: Talk) -> None:
    secret, free = topics_to_assign(talk, secret=1, free=1)
    group, id_ = talk.name("group"), talk.name("transactional")
    identity = id_of(talk, secret)
    lists = [forbidding(TOPIC, secret), forbidding(GROUP, group), forbidding(TRANSACTIONAL_ID, id_)]
    talk.ask("CreateAcls", creations=lists)
    eventually(
        lambda: talk.ask("Metadata", keep=False, version=9, topics=[{"name": secret}]).topics[0].error_code == 29,
        "the list is known",
    )
    talk.ask("Metadata", topics=[{"name": secret}, {"name": talk.name("missing")}], allow_auto_topic_creation=False)
    by_id = talk.version("Produce") >= 13, talk.version("Fetch") >= 13
    fields = zip(by_id, ("name", "topic"), strict=True)
    named: list[Body] = [{"topic_id": identity} if ids else {field: secret} for ids, field in fields]
    written = [{**named[0], "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    talk.ask("Produce", acks=-1, timeout_ms=10_000, topic_data=written)
    read = [{**named[1], "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}]
    talk.ask("Fetch", topics=read, max_wait_ms=10, min_bytes=1, isolation_level=0)
    talk.ask("ListOffsets", topics=parts(secret, 0, timestamp=-1))
    epochs = [{"topic": secret, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
    talk.ask("OffsetForLeaderEpoch", topics=epochs)
    talk.ask("DeleteRecords", topics=parts(secret, 0, offset=0), timeout_ms=10_000)
    talk.ask("CreatePartitions", topics=[{"name": secret, "count": 2}], timeout_ms=10_000)
    talk.ask("DescribeConfigs", resources=[{"resource_type": 2, "resource_name": secret}])
    alter = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    talk.ask("IncrementalAlterConfigs", resources=[{"resource_type": 2, "resource_name": secret, "configs": alter}])
    forbidden_groups(talk, group, free)
    forbidden_transactions(talk, id_, secret)
    allowed = talk.name("others")
    eventually(lambda: found_coordinator(talk, allowed), "there is a coordinator")
    body: Body = {"group_id": allowed, "generation_id_or_member_epoch": -1, "member_id": ""}
    for topics in (parts(secret, 0, committed_offset=1), parts(free, 0, committed_offset=1)):
        talk.ask("OffsetCommit", **body, topics=topics)
    positions(talk, allowed, secret)
    positions(talk, allowed, free)
    # A client that may delete in the whole cluster may delete each topic.
    if talk.version("DeleteTopics") < 6:
        talk.ask("DeleteTopics", topic_names=[secret], timeout_ms=10_000)
    else:
        talk.ask("DeleteTopics", topics=[{"name": secret}], timeout_ms=10_000)
    # Other tests have lists, too.
    filters = [acl_filter(resource_name_filter=name, pattern_type_filter=3) for name in (secret, group, id_)]
    talk.ask("DeleteAcls", keep=False, filters=filters)
    for each in filters:
        eventually(lambda of=each: not talk.ask("DescribeAcls", keep=False, **of).resources, "the lists are gone")  # type: ignore[misc]


def forbidden_groups(talk: Talk, group: str, topic: str) -> None:
    if talk.version("FindCoordinator") >= 4:
        talk.ask("FindCoordinator", key_type=0, coordinator_keys=[group])
    else:
        talk.ask("FindCoordinator", key_type=0, key=group)
    talk.ask("JoinGroup", **joining(group, ""))
    talk.ask("SyncGroup", group_id=group, generation_id=1, member_id="a", protocol_type="c", protocol_name="r")
    talk.ask("Heartbeat", group_id=group, generation_id=1, member_id="a")
    leave(talk, group, "a")
    talk.ask("DescribeGroups", groups=[group])
    talk.ask("DeleteGroups", groups_names=[group])
    talk.ask("ConsumerGroupHeartbeat", group_id=group, member_id="a", member_epoch=0)
    talk.ask("ConsumerGroupDescribe", group_ids=[group])
    talk.ask("StreamsGroupHeartbeat", group_id=group, member_id="a", member_epoch=0)
    talk.ask("StreamsGroupDescribe", group_ids=[group])
    listed(talk, group)
    body: Body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    talk.ask("OffsetCommit", **body, topics=parts(topic, 0, committed_offset=1))
    positions(talk, group, topic)


def forbidden_transactions(talk: Talk, id_: str, topic: str) -> None:
    if talk.version("FindCoordinator") >= 4:
        talk.ask("FindCoordinator", key_type=1, coordinator_keys=[id_])
    else:
        talk.ask("FindCoordinator", key_type=1, key=id_)
    me: Body = {"transactional_id": id_, "producer_id": 1, "producer_epoch": 0}
    talk.ask("InitProducerId", transactional_id=id_, transaction_timeout_ms=60_000)
    talk.ask("AddPartitionsToTxn", **me, topics=[{"name": topic, "partitions": [0]}])
    talk.ask("AddOffsetsToTxn", **me, group_id=talk.name("others"))
    talk.ask("EndTxn", **me, committed=True)
    talk.ask("TxnOffsetCommit", **me, group_id=talk.name("others"), topics=parts(topic, 0, committed_offset=1))


@pytest.fixture(scope="module")
def strict(secured_broker: SecuredBroker) -> Iterator[tuple[str, EmbeddedKafka]]:
    """Two brokers with access control: the address of a real one, and ours."""
    with EmbeddedKafka(config=ACCESS_CONTROL) as ours:
        yield secured_broker.bootstrap_servers, ours


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("talked", [of_access_control_lists, of_what_is_forbidden], ids=lambda talked: talked.__name__)
def test_both_brokers_forbid_the_same(
    talked: Conversation, age: str, strict: tuple[str, EmbeddedKafka], unique_name: Callable[[str], str]
) -> None:
    real, ours = strict
    assert [one for _, one in compared(talked, age, real, ours, unique_name)] == []

"""Fetch: returns record batches, waits for them if necessary, and keeps sessions (KIP-227)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import Operation
from ..call import Call, Response, Served, Waiting
from ..errors import ApiError, ErrorCode
from ..partition_log import PartitionLog
from ..quotas import CONSUMER
from ..topics import Topic

FETCH = SchemaApi(
    "Fetch", 1, 4, 17, 12,
    """
cluster_id: string? 12+ tag 0
replica_id: int32 0-14 = -1
replica_state: {} 15+ tag 1
  replica_id: int32 = -1
  replica_epoch: int64 = -1
max_wait_ms: int32
min_bytes: int32
max_bytes: int32 = 2147483647
isolation_level: int8
session_id: int32 7+
session_epoch: int32 7+ = -1
topics: []
  topic: string 0-12
  topic_id: uuid 13+
  partitions: []
    partition: int32
    current_leader_epoch: int32 9+ = -1
    fetch_offset: int64
    last_fetched_epoch: int32 12+ = -1
    log_start_offset: int64 5+ = -1
    partition_max_bytes: int32
    replica_directory_id: uuid 17+ tag 0
forgotten_topics_data: [] 7+
  topic: string 0-12
  topic_id: uuid 13+
  partitions: [int32]
rack_id: string 11+
""",
    """
throttle_time_ms: int32
error_code: int16 7+
session_id: int32 7+
responses: []
  topic: string 0-12
  topic_id: uuid 13+
  partitions: []
    partition_index: int32
    error_code: int16
    high_watermark: int64
    last_stable_offset: int64 = -1
    log_start_offset: int64 5+ = -1
    diverging_epoch: {} 12+ tag 0
      epoch: int32 = -1
      end_offset: int64 = -1
    current_leader: {} 12+ tag 1
      leader_id: int32 = -1
      leader_epoch: int32 = -1
    snapshot_id: {} 12+ tag 2
      end_offset: int64 = -1
      epoch: int32 = -1
    aborted_transactions: []?
      producer_id: int64
      first_offset: int64
    preferred_read_replica: int32 11+ = -1
    records: bytes?
node_endpoints: [] 16+ tag 0
  node_id: int32
  host: string
  port: int32
  rack: string?
""",
)  # fmt: skip

FULL, NO_SESSION_EPOCH = 0, -1
READ_COMMITTED = 1
_MAX_EPOCH = 0x7FFFFFFF

#: Errors found before a partition is read.
_WITHOUT_TOPIC = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
#: A partition in a request: topic name or id, and number.
Part = tuple[Any, int]


@dataclass(eq=False)
class Session:
    """parts: the partitions to read, in order. said: high watermark, last stable offset and start, as last reported."""

    id: int
    epoch: int = 1
    parts: dict[Part, SimpleNamespace] = field(default_factory=dict)
    said: dict[Part, tuple[int, int, int]] = field(default_factory=dict)


def answer(call: Call) -> Response | Waiting:
    """Return the available batches if they are enough, or an error; otherwise wait."""
    sessions = call.connection.node.fetch_sessions
    body, asked = call.body, _parts(call)
    session: Session | None = None
    incremental = False
    if body.session_epoch in (FULL, NO_SESSION_EPOCH):
        sessions.pop(body.session_id, None)
        if body.session_epoch == FULL and call.version >= 7 and asked:
            session = Session(_new_id(call, sessions), parts=asked)
            if len(sessions) < int(call.cluster.config["max.incremental.fetch.session.cache.slots"]):
                sessions[session.id] = session
            else:
                session = None
    else:
        session = sessions.get(body.session_id)
        if session is None:
            return {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "responses": []}
        if body.session_epoch != session.epoch:
            return {"error_code": ErrorCode.INVALID_FETCH_SESSION_EPOCH, "responses": []}
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        _update(call, session, asked)
        asked, incremental = session.parts, True

    def collect() -> list[tuple[Part, dict[str, Any]]]:
        return _read(call, asked)

    def ready() -> Response | None:
        found = collect()
        size = sum(len(data["records"]) for _, data in found)
        enough = size >= body.min_bytes or any(data["error_code"] or "diverging_epoch" in data for _, data in found)
        return _response(call, session, found, incremental) if enough or not asked else None

    def late() -> Response:
        return _response(call, session, collect(), incremental)

    until = call.cluster.now_ms + body.max_wait_ms
    return Waiting(ready, until, late)


def _new_id(call: Call, sessions: Mapping[int, Session]) -> int:
    while (found := call.cluster.random.randint(1, _MAX_EPOCH)) in sessions:
        pass
    return found


def _parts(call: Call) -> dict[Part, SimpleNamespace]:
    by_id = call.version >= 13
    return {
        (topic.topic_id if by_id else topic.topic, part.partition): part
        for topic in call.body.topics
        for part in topic.partitions
    }


def _update(call: Call, session: Session, changed: Mapping[Part, SimpleNamespace]) -> None:
    session.parts.update(changed)
    for topic in call.body.forgotten_topics_data:
        for number in topic.partitions:
            part = (topic.topic_id if call.version >= 13 else topic.topic), number
            session.parts.pop(part, None)
            session.said.pop(part, None)


def _read(call: Call, asked: Mapping[Part, SimpleNamespace]) -> list[tuple[Part, dict[str, Any]]]:
    left, found = call.body.max_bytes, []
    for key, part in asked.items():
        data = _read_partition(call, key, part, left, at_least_one=left == call.body.max_bytes)
        left -= len(data["records"])
        found.append((key, data))
    return found


def _read_partition(call: Call, key: Part, part: SimpleNamespace, left: int, at_least_one: bool) -> dict[str, Any]:
    nothing = {"partition_index": key[1], "error_code": ErrorCode.NONE, "records": b"", "aborted_transactions": []}
    topic: Topic | None = None
    try:
        cluster = call.cluster
        topic = (call.topic_by_id if call.version >= 13 else call.topic)(key[0], Operation.READ)
        partition = cluster.led_here(call.connection.node, topic, key[1], part.current_leader_epoch)
        log = partition.log
        if part.last_fetched_epoch >= 0:
            epoch, end = log.end_of_epoch(part.last_fetched_epoch, partition.leader_epoch)
            if epoch < part.last_fetched_epoch or end < part.fetch_offset:
                return {
                    **nothing,
                    **_offsets(log),
                    "aborted_transactions": None,
                    "diverging_epoch": {"epoch": epoch, "end_offset": end},
                }
        if not log.start <= part.fetch_offset <= log.end:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    except ApiError as error:
        moved: dict[str, object] = {}
        if call.version >= 16 and topic is not None and error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            current = topic.partitions[key[1]]
            moved = {"current_leader": {"leader_id": current.leader, "leader_epoch": current.leader_epoch}}
        if error.code not in _WITHOUT_TOPIC:
            moved["aborted_transactions"] = None
        return {**nothing, **moved, "error_code": error.code, "high_watermark": -1}
    committed = call.body.isolation_level == READ_COMMITTED
    end = log.readable_end(committed)
    records = log.read(part.fetch_offset, end, min(part.partition_max_bytes, max(left, 0)), at_least_one)
    answer: dict[str, Any] = {**nothing, **_offsets(log), "records": records, "aborted_transactions": None}
    if committed:
        read_to = end if not records else min(end, log.end)
        answer["aborted_transactions"] = [
            {"producer_id": one.producer_id, "first_offset": one.first}
            for one in (log.abortions(part.fetch_offset, read_to) if records else [])
        ]
    return answer


def _offsets(log: PartitionLog) -> dict[str, int]:
    return {
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable,
        "log_start_offset": log.start,
    }


def _response(
    call: Call, session: Session | None, found: list[tuple[Part, dict[str, Any]]], incremental: bool
) -> Response:
    size = sum(len(data["records"]) for _, data in found)
    if wait_ms := call.throttle(CONSUMER, size):  # the client requests the rest again
        call.cluster.quotas.give_back(CONSUMER, call.user, call.client_id, size, call.cluster.now_ms)
        return {"throttle_time_ms": wait_ms, "session_id": 0 if session is None else session.id, "responses": []}
    topics: dict[Any, list[dict[str, object]]] = {}
    for key, data in found:
        if session is not None:
            said = data["high_watermark"], data.get("last_stable_offset", -1), data.get("log_start_offset", -1)
            unchanged = session.said.get(key) == said
            session.said[key] = said
            if incremental and unchanged and not data["records"] and not data["error_code"]:
                continue
            if data["error_code"]:
                session.said.pop(key, None)
        topics.setdefault(key[0], []).append(data)
    name = "topic_id" if call.version >= 13 else "topic"
    return {
        "session_id": 0 if session is None else session.id,
        "responses": [{name: topic, "partitions": parts} for topic, parts in topics.items()],
        **_endpoints(call, topics),
    }


def _endpoints(call: Call, topics: Mapping[Any, list[dict[str, Any]]]) -> dict[str, object]:
    leaders = {d["current_leader"]["leader_id"] for parts in topics.values() for d in parts if "current_leader" in d}
    nodes = [call.cluster.nodes[node] for node in sorted(leaders - {-1})]
    found = [{"node_id": node.id, "host": node.host, "port": node.port} for node in nodes]
    return {"node_endpoints": found} if found else {}


SERVED = Served(FETCH, answer, 4)

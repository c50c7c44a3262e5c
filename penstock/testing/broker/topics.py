"""Topics with their partitions and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import ApiError, ErrorCode
from .partition_log import PartitionLog
from .record_batches import Batch

#: The settings of topics that have an effect here, or that clients request, with Kafka 4.4's defaults. The exception is
#: retention.ms: as with the dev broker, a topic keeps all records, because recorded data has old timestamps.
TOPIC_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}
_POLICIES = {"delete", "compact", "compact,delete", "delete,compact", ""}
#: The maximum number of refused records in the message about their batch.
_SHOWN = 3
_NAME_BYTES = 249
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(eq=False)
class Partition:
    """replicas: nodes; all that are up are in sync."""

    leader: int
    replicas: list[int]
    leader_epoch: int = 0
    log: PartitionLog = field(default_factory=PartitionLog)


@dataclass(eq=False)
class Topic:
    """config: settings that override TOPIC_DEFAULTS."""

    name: str
    id: bytes
    partitions: list[Partition]
    config: dict[str, str]

    def setting(self, key: str) -> str:
        """Return a setting's effective value."""
        return self.config.get(key, TOPIC_DEFAULTS[key])

    @property
    def internal(self) -> bool:
        """True if it is one of the brokers' own topics."""
        return self.name in ("__consumer_offsets", "__transaction_state")

    @property
    def expires(self) -> bool:
        """True if its records are deleted by age or size."""
        limits = int(self.setting("retention.ms")), int(self.setting("retention.bytes"))
        return "delete" in self.setting("cleanup.policy") and max(limits) >= 0

    def delete_expired(self, now_ms: int) -> None:
        """Delete the records beyond retention.ms and retention.bytes, batch by batch (Kafka: segment by segment)."""
        if not self.expires:
            return
        age_ms, size = int(self.setting("retention.ms")), int(self.setting("retention.bytes"))
        for partition in self.partitions:
            if age_ms >= 0:
                partition.log.delete_older(now_ms - age_ms)
            if size >= 0:
                partition.log.delete_larger(size)

    def accept(self, number: int, batch: Batch, now_ms: int) -> Batch:
        """Append a producer's batch to a partition and return it as stored. Raises ApiError."""
        if len(batch.data) > int(self.setting("max.message.bytes")):
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        partition = self.partitions[number]
        if self.setting("message.timestamp.type") == "LogAppendTime":
            return partition.log.append(batch, partition.leader_epoch, now_ms)
        self._check(batch, number, now_ms)
        return partition.log.append(batch, partition.leader_epoch)

    def _check(self, batch: Batch, partition: int, now_ms: int) -> None:
        """Refuse a batch with records that lack a required key, or that are too old or too far in the future
        (KIP-467).
        """
        earliest = now_ms - int(self.setting("message.timestamp.before.max.ms"))
        latest = now_ms + int(self.setting("message.timestamp.after.max.ms"))
        compacted = "compact" in self.setting("cleanup.policy")
        if not compacted and earliest < 0 and batch.max_timestamp <= latest:
            return  # the header is enough
        records = batch.records
        keyless = [number for number, record in enumerate(records) if compacted and record.key is None]
        if keyless:
            said = f"Compacted topic cannot accept message without key in topic partition {self.name}-{partition}"
            shown = ", ".join(f"RecordError(batchIndex={at}, message='{said}')" for at in keyless[:_SHOWN])
            counted = (
                f"{len(keyless)} record errors in total, and only showing the first three errors at most: [{shown}]"
            )
            message = f"One or more records have been rejected due to {counted}"
            raise RecordsRefusedError(ErrorCode.INVALID_RECORD, message, dict.fromkeys(keyless, said))
        wrong = [number for number, record in enumerate(records) if not earliest <= record.timestamp <= latest]
        if wrong:
            said = f"Timestamp of message is out of range. The timestamp should be within [{earliest}, {latest}]"
            message = "One or more records have been rejected due to invalid timestamp"
            raise RecordsRefusedError(ErrorCode.INVALID_TIMESTAMP, message, dict.fromkeys(wrong, said))


class RecordsRefusedError(ApiError):
    """Only some records are refused (KIP-467). records: the message about each, by its position in the batch."""

    def __init__(self, code: ErrorCode, message: str, records: Mapping[int, str]) -> None:
        super().__init__(code, message)
        self.records = records


def check_name(name: str) -> None:
    """Raise ApiError for an invalid topic name (Kafka: Topic.validate)."""
    reason = ""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > _NAME_BYTES:
        reason = f"the length of '{name}' is longer than the max allowed length {_NAME_BYTES}"
    elif not _NAME_LETTERS.issuperset(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_config(config: Mapping[str, str]) -> None:
    """Raise ApiError for unknown settings of topics, or invalid values."""
    for key, value in config.items():
        if key not in TOPIC_DEFAULTS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
        if key == "cleanup.policy":
            if value.replace(" ", "") not in _POLICIES:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"Invalid value {value} for configuration cleanup.policy: String must be one of: compact, delete",
                )
        elif TOPIC_DEFAULTS[key].lstrip("-").isdigit() and not value.lstrip("-").isdigit():
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {key}: Not a number of type LONG"
            )

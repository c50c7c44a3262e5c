"""The serialized group metadata of the member whose offsets a transaction commits (KIP-447).

librdkafka has no public API to create it other than from a subscribed consumer, so its serialization is reimplemented
here and checked against the installed confluent-kafka (`verify_layout`).
"""

from __future__ import annotations

import struct

from confluent_kafka import Consumer

from penstock.topology.errors import StreamsError

from ..protocol.offset_commits import GroupMetadata

_MAGIC = b"CGMDv2:"


def encode_group_metadata(member: GroupMetadata) -> bytes:
    """Return librdkafka's serialized consumer group metadata, version 2.

    Magic, generation as an int32 in the machine's byte order, group and member id as C strings, then one byte: 1 for no
    group.instance.id, else 0 and the id as a C string.
    """
    instance = b"\x01" if member.instance_id is None else b"\x00" + member.instance_id.encode() + b"\x00"
    group, name = member.group_id.encode(), member.member_id.encode()
    return _MAGIC + struct.pack("=i", member.generation) + group + b"\x00" + name + b"\x00" + instance


def verify_layout() -> None:
    """Raise StreamsError if the installed confluent-kafka serializes group metadata differently (exactly-once)."""
    for instance_id in (None, "an-instance"):
        config = {"group.id": "a-group"} | ({"group.instance.id": instance_id} if instance_id else {})
        consumer = Consumer(config, logger=None)
        try:
            real = bytes(consumer.consumer_group_metadata())
        finally:
            consumer.close()
        ours = encode_group_metadata(GroupMetadata("a-group", instance_id=instance_id))
        if real != ours:
            raise StreamsError(
                f"This version of confluent-kafka serializes group metadata as {real!r}, but Penstock as {ours!r}. "
                "Transactions would not be fenced. Install a confluent-kafka version that penstock supports, or use "
                "processing.guarantee=at_least_once."
            )

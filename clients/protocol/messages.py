"""Rarely used messages, as Kafka defines them (clients/src/main/resources/common/message).

schema.py explains the notation. The lowest versions are those of Kafka 2.4, the highest those of Kafka 4.4 that are
useful to a client. Some messages have fields of older versions, too: penstock.testing.broker serves these. Produce and
Fetch are performance-critical and encoded by hand in separate modules.
"""

from __future__ import annotations

import re

from penstock_distribution import version

from .schema import Request, SchemaApi, structure

API_VERSIONS = SchemaApi(
    "ApiVersions", 18, 0, 5, 3,
    """
client_software_name: string 3+
client_software_version: string 3+
cluster_id: string? 5+
node_id: int32 5+ = -1
""",
    """
error_code: int16
api_keys: []
  api_key: int16
  min_version: int16
  max_version: int16
throttle_time_ms: int32 1+
supported_features: [] 3+ tag 0
  name: string
  min_version: int16
  max_version: int16
finalized_features_epoch: int64 3+ tag 1 = -1
finalized_features: [] 3+ tag 2
  name: string
  max_version_level: int16
  min_version_level: int16
zk_migration_ready: bool 3+ tag 3
""",
)  # fmt: skip


def api_versions(cluster_id: str | None = None, node_id: int = -1) -> Request:
    """Ask a broker for its versions, and name this client (KIP-511).

    cluster_id, node_id: those of the broker that is meant, if they are known: another one answers REBOOTSTRAP_REQUIRED
    (KIP-1242). Brokers refuse a version with other characters than these; that of a commit between two releases has
    a ``+``.
    """
    own_version = re.sub(r"[^A-Za-z0-9.-]", "-", version())
    own = {"client_software_name": "penstock", "client_software_version": own_version}
    return API_VERSIONS(**own, cluster_id=cluster_id, node_id=node_id)


SASL_HANDSHAKE = SchemaApi(
    "SaslHandshake", 17, 1, 1, 99,
    """
mechanism: string
""",
    """
error_code: int16
mechanisms: [string]
""",
)  # fmt: skip

SASL_AUTHENTICATE = SchemaApi(
    "SaslAuthenticate", 36, 0, 2, 2,
    """
auth_bytes: bytes
""",
    """
error_code: int16
error_message: string?
auth_bytes: bytes
session_lifetime_ms: int64 1+
""",
)  # fmt: skip

METADATA = SchemaApi(
    "Metadata", 3, 5, 13, 9,
    """
topics: []?
  topic_id: uuid 10+
  name: string?
allow_auto_topic_creation: bool = True
include_cluster_authorized_operations: bool 8-10
include_topic_authorized_operations: bool 8+
""",
    """
throttle_time_ms: int32
brokers: []
  node_id: int32
  host: string
  port: int32
  rack: string?
cluster_id: string?
controller_id: int32 = -1
topics: []
  error_code: int16
  name: string?
  topic_id: uuid 10+
  is_internal: bool
  partitions: []
    error_code: int16
    partition_index: int32
    leader_id: int32
    leader_epoch: int32 7+ = -1
    replica_nodes: [int32]
    isr_nodes: [int32]
    offline_replicas: [int32]
  topic_authorized_operations: int32 8+
cluster_authorized_operations: int32 8-10
error_code: int16 13+
""",
)  # fmt: skip

FIND_COORDINATOR = SchemaApi(
    "FindCoordinator", 10, 1, 6, 3,
    """
key: string 0-3
key_type: int8
coordinator_keys: [string] 4+
""",
    """
throttle_time_ms: int32
error_code: int16 0-3
error_message: string? 0-3
node_id: int32 0-3
host: string 0-3
port: int32 0-3
coordinators: [] 4+
  key: string
  node_id: int32
  host: string
  port: int32
  error_code: int16
  error_message: string?
""",
)  # fmt: skip

OFFSET_FETCH = SchemaApi(
    "OffsetFetch", 9, 5, 9, 6,
    """
group_id: string 0-7
topics: [Topic]? 0-7
groups: [] 8+
  group_id: string
  member_id: string? 9+
  member_epoch: int32 9+ = -1
  topics: [Topic]?
require_stable: bool 7+
Topic:
name: string
partition_indexes: [int32]
""",
    """
throttle_time_ms: int32 3+
topics: [Topic] 0-7
error_code: int16 2-7
groups: [] 8+
  group_id: string
  topics: [Topic]
  error_code: int16
Topic:
name: string
partitions: []
  partition_index: int32
  committed_offset: int64
  committed_leader_epoch: int32 5+ = -1
  metadata: string?
  error_code: int16
""",
)  # fmt: skip

OFFSET_COMMIT = SchemaApi(
    "OffsetCommit", 8, 7, 9, 8,
    """
group_id: string
generation_id_or_member_epoch: int32 1+ = -1
member_id: string 1+
group_instance_id: string? 7+
retention_time_ms: int64 2-4 = -1
topics: []
  name: string
  partitions: []
    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 6+ = -1
    committed_metadata: string?
""",
    """
throttle_time_ms: int32 3+
topics: []
  name: string
  partitions: []
    partition_index: int32
    error_code: int16
""",
)  # fmt: skip

JOIN_GROUP = SchemaApi(
    "JoinGroup", 11, 5, 9, 6,
    """
group_id: string
session_timeout_ms: int32
rebalance_timeout_ms: int32 = -1
member_id: string
group_instance_id: string?
protocol_type: string
protocols: []
  name: string
  metadata: bytes
reason: string? 8+
""",
    """
throttle_time_ms: int32
error_code: int16
generation_id: int32 = -1
protocol_type: string? 7+
protocol_name: string?
leader: string
skip_assignment: bool 9+
member_id: string
members: []
  member_id: string
  group_instance_id: string?
  metadata: bytes
""",
)  # fmt: skip

SYNC_GROUP = SchemaApi(
    "SyncGroup", 14, 3, 5, 4,
    """
group_id: string
generation_id: int32
member_id: string
group_instance_id: string?
protocol_type: string? 5+
protocol_name: string? 5+
assignments: []
  member_id: string
  assignment: bytes
""",
    """
throttle_time_ms: int32
error_code: int16
protocol_type: string? 5+
protocol_name: string? 5+
assignment: bytes
""",
)  # fmt: skip

HEARTBEAT = SchemaApi(
    "Heartbeat", 12, 3, 4, 4,
    """
group_id: string
generation_id: int32
member_id: string
group_instance_id: string?
""",
    """
throttle_time_ms: int32
error_code: int16
""",
)  # fmt: skip

LEAVE_GROUP = SchemaApi(
    "LeaveGroup", 13, 3, 5, 4,
    """
group_id: string
member_id: string 0-2
members: [] 3+
  member_id: string
  group_instance_id: string?
  reason: string? 5+
""",
    """
throttle_time_ms: int32 1+
error_code: int16
members: [] 3+
  member_id: string
  group_instance_id: string?
  error_code: int16
""",
)  # fmt: skip

DESCRIBE_GROUPS = SchemaApi(
    "DescribeGroups", 15, 4, 6, 5,
    """
groups: [string]
include_authorized_operations: bool 3+
""",
    """
throttle_time_ms: int32 1+
groups: []
  error_code: int16
  error_message: string? 6+
  group_id: string
  group_state: string
  protocol_type: string
  protocol_data: string
  members: []
    member_id: string
    group_instance_id: string? 4+
    client_id: string
    client_host: string
    member_metadata: bytes
    member_assignment: bytes
  authorized_operations: int32 3+
""",
)  # fmt: skip

CONSUMER_GROUP_DESCRIBE = SchemaApi(
    "ConsumerGroupDescribe", 69, 0, 1, 0,
    """
group_ids: [string]
include_authorized_operations: bool
""",
    """
throttle_time_ms: int32
groups: []
  error_code: int16
  error_message: string?
  group_id: string
  group_state: string
  group_epoch: int32
  assignment_epoch: int32
  assignor_name: string
  members: []
    member_id: string
    instance_id: string?
    rack_id: string?
    member_epoch: int32
    client_id: string
    client_host: string
    subscribed_topic_names: [string]
    subscribed_topic_regex: string?
    assignment: Assignment
    target_assignment: Assignment
    member_type: int8 1+ = -1
  authorized_operations: int32 = -2147483648
Assignment:
topic_partitions: []
  topic_id: uuid
  topic_name: string
  partitions: [int32]
""",
)  # fmt: skip

LIST_OFFSETS = SchemaApi(
    "ListOffsets", 2, 4, 10, 6,
    """
replica_id: int32 = -1
isolation_level: int8
topics: []
  name: string
  partitions: []
    partition_index: int32
    current_leader_epoch: int32 = -1
    timestamp: int64
timeout_ms: int32 10+
""",
    """
throttle_time_ms: int32
topics: []
  name: string
  partitions: []
    partition_index: int32
    error_code: int16
    timestamp: int64 = -1
    offset: int64 = -1
    leader_epoch: int32 = -1
""",
)  # fmt: skip

INIT_PRODUCER_ID = SchemaApi(
    "InitProducerId", 22, 1, 5, 2,
    """
transactional_id: string?
transaction_timeout_ms: int32 = -1
producer_id: int64 3+ = -1
producer_epoch: int16 3+ = -1
""",
    """
throttle_time_ms: int32
error_code: int16
producer_id: int64 = -1
producer_epoch: int16 = -1
""",
)  # fmt: skip

ADD_PARTITIONS_TO_TXN = SchemaApi(  # from version 4 on only brokers send it, not clients (KIP-890)
    "AddPartitionsToTxn", 24, 1, 3, 3,
    """
transactional_id: string
producer_id: int64
producer_epoch: int16
topics: []
  name: string
  partitions: [int32]
""",
    """
throttle_time_ms: int32
results_by_topic: []
  name: string
  results_by_partition: []
    partition_index: int32
    partition_error_code: int16
""",
)  # fmt: skip

ADD_OFFSETS_TO_TXN = SchemaApi(
    "AddOffsetsToTxn", 25, 1, 4, 3,
    """
transactional_id: string
producer_id: int64
producer_epoch: int16
group_id: string
""",
    """
throttle_time_ms: int32
error_code: int16
""",
)  # fmt: skip

TXN_OFFSET_COMMIT = SchemaApi(
    "TxnOffsetCommit", 28, 3, 5, 3,
    """
transactional_id: string
group_id: string
producer_id: int64
producer_epoch: int16
generation_id_or_member_epoch: int32 3+ = -1
member_id: string 3+
group_instance_id: string? 3+
topics: []
  name: string
  partitions: []
    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 2+ = -1
    committed_metadata: string?
""",
    """
throttle_time_ms: int32
topics: []
  name: string
  partitions: []
    partition_index: int32
    error_code: int16
""",
)  # fmt: skip

END_TXN = SchemaApi(
    "EndTxn", 26, 1, 5, 3,
    """
transactional_id: string
producer_id: int64
producer_epoch: int16
committed: bool
""",
    """
throttle_time_ms: int32
error_code: int16
producer_id: int64 5+ = -1
producer_epoch: int16 5+ = -1
""",
)  # fmt: skip

# Embedded in a classic group's messages; the first two bytes are the version.

CONSUMER_SUBSCRIPTION = structure(
    """
version: int16
topics: [string]
user_data: bytes?
owned_partitions: [] 1+
  topic: string
  partitions: [int32]
generation_id: int32 2+ = -1
rack_id: string? 3+
"""
)
CONSUMER_ASSIGNMENT = structure(
    """
version: int16
assigned_partitions: []
  topic: string
  partitions: [int32]
user_data: bytes?
"""
)

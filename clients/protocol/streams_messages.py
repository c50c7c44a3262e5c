"""The messages of streams groups (KIP-1071), as Kafka 4.4 has them; version 0 is that of Kafka 4.2."""

from __future__ import annotations

from .schema import SchemaApi

#: A processor, source or sink in the description of a topology (KIP-1331).
_NODE = """Node:
name: string
node_type: int8
source_topics: [string]
sink_topic: string?
stores: [string]
successors: [string]
"""

STREAMS_GROUP_HEARTBEAT = SchemaApi(
    "StreamsGroupHeartbeat", 88, 0, 1, 0,
    """
group_id: string
member_id: string
member_epoch: int32
endpoint_information_epoch: int32
instance_id: string?
rack_id: string?
rebalance_timeout_ms: int32 = -1
topology: {}?
  epoch: int32
  subtopologies: []
    subtopology_id: string
    source_topics: [string]
    source_topic_regex: [string]
    state_changelog_topics: [TopicInfo]
    repartition_sink_topics: [string]
    repartition_source_topics: [TopicInfo]
    copartition_groups: []
      source_topics: [int16]
      source_topic_regex: [int16]
      repartition_source_topics: [int16]
active_tasks: [TaskIds]?
standby_tasks: [TaskIds]?
warmup_tasks: [TaskIds]?
process_id: string?
user_endpoint: {}?
  host: string
  port: uint16
client_tags: [KeyValue]?
task_offsets: [TaskOffset]?
task_end_offsets: [TaskOffset]?
shutdown_application: bool
KeyValue:
key: string
value: string
TopicInfo:
name: string
partitions: int32
replication_factor: int16
topic_configs: [KeyValue]
TaskIds:
subtopology_id: string
partitions: [int32]
TaskOffset:
subtopology_id: string
partition: int32
offset: int64
""",
    """
throttle_time_ms: int32
error_code: int16
error_message: string?
member_id: string
member_epoch: int32
heartbeat_interval_ms: int32
acceptable_recovery_lag_legacy: int32 0 = -1
task_offset_interval_ms: int32
acceptable_recovery_lag: int64 1+ = -1
status: []?
  status_code: int8
  status_detail: string
active_tasks: [TaskIds]?
standby_tasks: [TaskIds]?
warmup_tasks: [TaskIds]?
topology_description_required: bool 1+
endpoint_information_epoch: int32
partitions_by_user_endpoint: []?
  user_endpoint: {}
    host: string
    port: uint16
  active_partitions: [TopicPartitions]
  standby_partitions: [TopicPartitions]
TaskIds:
subtopology_id: string
partitions: [int32]
TopicPartitions:
topic: string
partitions: [int32]
""",
)  # fmt: skip

STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = SchemaApi(
    "StreamsGroupTopologyDescriptionUpdate", 93, 0, 0, 0,
    """
group_id: string
member_id: string
topology_epoch: int32
topology_description: {}
  subtopologies: []
    subtopology_id: string
    nodes: [Node]
  global_stores: []
    source: Node
    processor: Node
""" + _NODE,
    """
throttle_time_ms: int32
error_code: int16
error_message: string?
""",
)  # fmt: skip

STREAMS_GROUP_DESCRIBE = SchemaApi(
    "StreamsGroupDescribe", 89, 0, 1, 0,
    """
group_ids: [string]
include_authorized_operations: bool
include_topology_description: bool 1+
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
  topology: {}?
    epoch: int32
    subtopologies: []?
      subtopology_id: string
      source_topics: [string]
      repartition_sink_topics: [string]
      state_changelog_topics: [TopicInfo]
      repartition_source_topics: [TopicInfo]
  members: []
    member_id: string
    member_epoch: int32
    instance_id: string?
    rack_id: string?
    client_id: string
    client_host: string
    topology_epoch: int32
    process_id: string
    user_endpoint: {}?
      host: string
      port: uint16
    client_tags: [KeyValue]
    task_offsets: [TaskOffset]
    task_end_offsets: [TaskOffset]
    assignment: Assignment
    target_assignment: Assignment
    is_classic: bool
  authorized_operations: int32 = -2147483648
  topology_description: {}? 1+
    subtopologies: []
      subtopology_id: string
      nodes: [Node]
    global_stores: []
      source: Node
      processor: Node
  topology_description_status: int8 1+
  assignor_name: string? 1+
KeyValue:
key: string
value: string
TopicInfo:
name: string
partitions: int32
replication_factor: int16
topic_configs: [KeyValue]
TaskOffset:
subtopology_id: string
partition: int32
offset: int64
TaskIds:
subtopology_id: string
partitions: [int32]
Assignment:
active_tasks: [TaskIds]
standby_tasks: [TaskIds]
warmup_tasks: [TaskIds]
""" + _NODE,
)  # fmt: skip

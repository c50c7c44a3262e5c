"""Messages to create, describe and configure topics and to delete records; schema.py explains the notation."""

from __future__ import annotations

from .schema import SchemaApi

CREATE_TOPICS = SchemaApi(
    "CreateTopics", 19, 2, 7, 5,
    """
topics: []
  name: string
  num_partitions: int32
  replication_factor: int16
  assignments: []
    partition_index: int32
    broker_ids: [int32]
  configs: []
    name: string
    value: string?
timeout_ms: int32 = 60000
validate_only: bool
""",
    """
throttle_time_ms: int32
topics: []
  name: string
  topic_id: uuid 7+
  error_code: int16
  error_message: string?
  topic_config_error_code: int16 5+ tag 0
  num_partitions: int32 5+ = -1
  replication_factor: int16 5+ = -1
  configs: []? 5+
    name: string
    value: string?
    read_only: bool
    config_source: int8 = -1
    is_sensitive: bool
""",
)  # fmt: skip

DESCRIBE_CONFIGS = SchemaApi(
    "DescribeConfigs", 32, 1, 4, 4,
    """
resources: []
  resource_type: int8
  resource_name: string
  configuration_keys: [string]?
include_synonyms: bool
include_documentation: bool 3+
""",
    """
throttle_time_ms: int32
results: []
  error_code: int16
  error_message: string?
  resource_type: int8
  resource_name: string
  configs: []
    name: string
    value: string?
    read_only: bool
    config_source: int8 = -1
    is_sensitive: bool
    synonyms: []
      name: string
      value: string?
      source: int8
    config_type: int8 3+
    documentation: string? 3+
""",
)  # fmt: skip

INCREMENTAL_ALTER_CONFIGS = SchemaApi(
    "IncrementalAlterConfigs", 44, 0, 1, 1,
    """
resources: []
  resource_type: int8
  resource_name: string
  configs: []
    name: string
    config_operation: int8
    value: string?
validate_only: bool
""",
    """
throttle_time_ms: int32
responses: []
  error_code: int16
  error_message: string?
  resource_type: int8
  resource_name: string
""",
)  # fmt: skip

DELETE_RECORDS = SchemaApi(
    "DeleteRecords", 21, 0, 2, 2,
    """
topics: []
  name: string
  partitions: []
    partition_index: int32
    offset: int64
timeout_ms: int32
""",
    """
throttle_time_ms: int32
topics: []
  name: string
  partitions: []
    partition_index: int32
    low_watermark: int64
    error_code: int16
""",
)  # fmt: skip

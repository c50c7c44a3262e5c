"""Messages to push a client's metrics to a broker (KIP-714); schema.py explains the notation."""

from __future__ import annotations

from .schema import SchemaApi

GET_TELEMETRY_SUBSCRIPTIONS = SchemaApi(
    "GetTelemetrySubscriptions", 71, 0, 0, 0,
    """
client_instance_id: uuid
""",
    """
throttle_time_ms: int32
error_code: int16
client_instance_id: uuid
subscription_id: int32
accepted_compression_types: [int8]
push_interval_ms: int32
telemetry_max_bytes: int32
delta_temporality: bool
requested_metrics: [string]
""",
)  # fmt: skip

PUSH_TELEMETRY = SchemaApi(
    "PushTelemetry", 72, 0, 0, 0,
    """
client_instance_id: uuid
subscription_id: int32
terminating: bool
compression_type: int8
metrics: bytes
""",
    """
throttle_time_ms: int32
error_code: int16
""",
)  # fmt: skip

"""AlterClientQuotas: limits on the bytes that clients write and read per second (KIP-546)."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import CLUSTER_NAME, Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..quotas import CLIENT_ID, KEYS, USER, Entity

ALTER_CLIENT_QUOTAS = SchemaApi(
    "AlterClientQuotas", 49, 0, 1, 1,
    """
entries: []
  entity: []
    entity_type: string
    entity_name: string?
  ops: []
    key: string
    value: float64
    remove: bool
validate_only: bool
""",
    """
throttle_time_ms: int32
entries: []
  error_code: int16
  error_message: string?
  entity: []
    entity_type: string
    entity_name: string?
""",
)  # fmt: skip
#: Quotas of Kafka that have no effect here.
_OTHERS = ("request_percentage", "controller_mutation_rate", "connection_creation_rate")


def answer(call: Call) -> Response:
    """Change the limits of each entity, all of them or none."""
    return {"entries": [_altered(call, entry) for entry in call.body.entries]}


def _altered(call: Call, asked: SimpleNamespace) -> Response:
    named = {"entity": [vars(part) for part in asked.entity]}
    try:
        call.check(Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        entity = _entity(asked.entity)
        changes = {op.key: None if op.remove else op.value for op in asked.ops}
        for key, value in changes.items():
            if key in _OTHERS:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{key} has no effect here")
            if key not in KEYS:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
            if value is not None and value <= 0:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
            if value is not None and value != int(value):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")
        if not call.body.validate_only:
            call.cluster.quotas.change(entity, changes)
    except ApiError as error:
        return {**named, "error_code": error.code, "error_message": error.message}
    return named


def _entity(parts: Collection[SimpleNamespace]) -> Entity:
    if not parts:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for part in parts:
        if part.entity_type == "ip":
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "limits of addresses have no effect here")
        if part.entity_type not in (USER, CLIENT_ID):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {part.entity_type}")
    return tuple(sorted((part.entity_type, part.entity_name) for part in parts))


SERVED = Served(ALTER_CLIENT_QUOTAS, answer, 0)

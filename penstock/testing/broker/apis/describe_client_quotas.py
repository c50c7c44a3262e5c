"""DescribeClientQuotas: limits on the bytes that clients write and read per second (KIP-546)."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import CLUSTER_NAME, Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..quotas import Entity

DESCRIBE_CLIENT_QUOTAS = SchemaApi(
    "DescribeClientQuotas", 48, 0, 1, 1,
    """
components: []
  entity_type: string
  match_type: int8
  match: string?
strict: bool
""",
    """
throttle_time_ms: int32
error_code: int16
error_message: string?
entries: []?
  entity: []
    entity_type: string
    entity_name: string?
  values: []
    key: string
    value: float64
""",
)  # fmt: skip
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


def answer(call: Call) -> Response:
    """Return the limits of the entities that match all components; strict: and that have no other components."""
    body = call.body
    try:
        call.check(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        for component in body.components:
            if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown match type: {component.match_type}")
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message, "entries": None}
    return {
        "error_message": "",
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in limits.items()],
            }
            for entity, limits in call.cluster.quotas.limits.items()
            if _fits(entity, body.components, body.strict)
        ],
    }


def _fits(entity: Entity, components: Collection[SimpleNamespace], strict: bool) -> bool:
    kinds = dict(entity)
    if strict and kinds.keys() != {one.entity_type for one in components}:
        return False
    return all(one.entity_type in kinds and _matches(kinds[one.entity_type], one) for one in components)


def _matches(name: str | None, component: SimpleNamespace) -> bool:
    if component.match_type == _EXACT:
        return bool(name == component.match)
    return component.match_type == _SPECIFIED or name is None


SERVED = Served(DESCRIBE_CLIENT_QUOTAS, answer, 0)

"""IncrementalAlterConfigs: single settings of topics (KIP-339) and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

from penstock.clients.protocol.admin_messages import INCREMENTAL_ALTER_CONFIGS

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..cluster import BROKER_DEFAULTS
from ..errors import ApiError, ErrorCode
from ..topics import check_config
from .describe_configs import FORBIDDEN, TOPIC

SET, DELETE = 0, 1
GROUP = 32


def answer(call: Call) -> Response:
    """Change the settings of each topic or group, all of them or none."""
    return {"responses": [_altered(call, resource) for resource in call.body.resources]}


def _altered(call: Call, asked: SimpleNamespace) -> Response:
    named = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        if asked.resource_type == TOPIC:
            _alter_topic(call, asked)
        elif asked.resource_type == GROUP:
            _alter_group(call, asked)
        else:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "only topics and groups can be altered here")
    except ApiError as error:
        return {**named, "error_code": error.code, "error_message": error.message}
    return named


def _alter_topic(call: Call, asked: SimpleNamespace) -> None:
    call.check(Operation.ALTER_CONFIGS, Resource.TOPIC, asked.resource_name, FORBIDDEN)
    if asked.resource_name not in call.cluster.topics:
        said = f"The topic '{asked.resource_name}' does not exist."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, said)
    topic = call.cluster.topic(asked.resource_name)
    config = _changed(topic.config, asked.configs)
    check_config(config)
    if not call.body.validate_only:
        topic.config = config


def _alter_group(call: Call, asked: SimpleNamespace) -> None:
    """Change a group's own settings, which override the brokers' settings for all groups."""
    config = _changed(call.cluster.group_configs.get(asked.resource_name, {}), asked.configs)
    for key, value in config.items():
        if f"group.{key}" not in BROKER_DEFAULTS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {key}")
        if not value.isdigit():
            said = f"Invalid value {value} for configuration {key}: Not a number of type INT"
            raise ApiError(ErrorCode.INVALID_CONFIG, said)
    if not call.body.validate_only:
        call.cluster.group_configs[asked.resource_name] = config


def _changed(config: Mapping[str, str], changes: Iterable[SimpleNamespace]) -> dict[str, str]:
    changed = dict(config)
    for one in changes:
        if one.config_operation == SET:
            changed[one.name] = one.value or ""
        elif one.config_operation == DELETE:
            changed.pop(one.name, None)
        else:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "only SET and DELETE are supported here")
    return changed


SERVED = Served(INCREMENTAL_ALTER_CONFIGS, answer, 0)

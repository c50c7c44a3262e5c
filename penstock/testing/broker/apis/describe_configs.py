"""DescribeConfigs: the settings of topics and brokers that have an effect here."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from penstock.clients.protocol.admin_messages import DESCRIBE_CONFIGS

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..cluster import BROKER_DEFAULTS
from ..errors import ApiError, ErrorCode
from ..topics import TOPIC_DEFAULTS

TOPIC, BROKER = 2, 4
FORBIDDEN = "Topic authorization failed."
_TOPIC_SOURCE, _STATIC_SOURCE, _DEFAULT_SOURCE = 1, 4, 5


def answer(call: Call) -> Response:
    """Return the settings of each resource."""
    return {"results": [_described(call, resource) for resource in call.body.resources]}


def _described(call: Call, asked: SimpleNamespace) -> Response:
    named = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        if asked.resource_type == TOPIC:
            call.check(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, asked.resource_name, FORBIDDEN)
            topic = call.cluster.topic(asked.resource_name)
            configs = _configs(asked, topic.config, TOPIC_DEFAULTS, _TOPIC_SOURCE)
        elif asked.resource_type == BROKER:
            configs = _configs(asked, call.cluster.config, BROKER_DEFAULTS, _STATIC_SOURCE)
        else:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "only topics and brokers have settings here")
    except ApiError as error:
        return {**named, "error_code": error.code, "error_message": error.message or "", "configs": []}
    return {**named, "error_message": "", "configs": configs}


def _configs(
    asked: SimpleNamespace, given: Mapping[str, str], defaults: Mapping[str, str], source: int
) -> list[Response]:
    keys = asked.configuration_keys
    return [
        {
            "name": key,
            "value": given.get(key, default),
            "config_source": source if given.get(key, default) != default else _DEFAULT_SOURCE,
        }
        for key, default in sorted(defaults.items())
        if keys is None or key in keys
    ]


SERVED = Served(DESCRIBE_CONFIGS, answer, 1)

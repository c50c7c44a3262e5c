"""Messages have the encoding of Kafka's own definitions, in each version that clients use:
kio is generated from them.
"""

from __future__ import annotations

import datetime
import random
import typing
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer

from penstock.clients.errors import ErrorCode
from penstock.clients.protocol import admin_messages, messages, streams_messages, telemetry_messages
from penstock.clients.protocol.compact import CompactReader
from penstock.clients.protocol.messages import CONSUMER_SUBSCRIPTION, HEARTBEAT, METADATA
from penstock.clients.protocol.schema import SchemaApi, structure

MODULES = (admin_messages, messages, streams_messages, telemetry_messages)
APIS = [api for module in MODULES for api in vars(module).values() if isinstance(api, SchemaApi)]
#: Versions that kio, made for Kafka 4.2, does not have.
NEWER = {("Metadata", 13), ("StreamsGroupHeartbeat", 1), ("ListOffsets", 11)}
NEWER |= {("ApiVersions", 5), ("StreamsGroupDescribe", 1), ("StreamsGroupTopologyDescriptionUpdate", 0)}
VERSIONS = [
    (api, version) for api in APIS for version in range(api.lowest, api.highest + 1) if (api.name, version) not in NEWER
]
IDS = [f"{api.name}-{version}" for api, version in VERSIONS]
#: Fields with other names here, because version 1 uses the name for another field.
RENAMED = {"acceptable_recovery_lag": "acceptable_recovery_lag_legacy"}


def made_up(annotation: Any, kafka_type: str | None, rng: random.Random) -> Any:
    """Return a random value for a field of kio's."""
    text = str(annotation)
    if is_dataclass(annotation):
        return entity(annotation, rng)
    if "None" in text and "tuple" not in text:
        inner = next(each for each in annotation.__args__ if each is not type(None))
        return made_up(inner, kafka_type, rng)
    if "tuple" in text:
        inner = next((a for a in getattr(annotation, "__args__", ()) if str(a).startswith("tuple")), annotation)
        return tuple(made_up(inner.__args__[0], kafka_type, rng) for _ in range(rng.randrange(3)))
    match kafka_type:
        case "bool":
            return rng.random() < 0.5
        case "string":
            return rng.choice(("", "a", "größer", "x" * 200))
        case "bytes":
            return rng.randbytes(rng.randrange(5))
        case "uuid":
            return UUID(bytes=rng.randbytes(16))
        case "error_code":
            return KioErrorCode(rng.randrange(100))
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=rng.randrange(1 << 20))
        case _:
            return rng.randrange(100)


def entity(kind: Any, rng: random.Random) -> Any:
    """Return one of kio's entities with random values; sometimes null or the default."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for each in fields(kind):
        if each.default is not MISSING and rng.random() < 0.3:
            continue
        if "None" in str(hints[each.name]) and rng.random() < 0.3:
            values[each.name] = None
            continue
        values[each.name] = made_up(hints[each.name], each.metadata.get("kafka_type"), rng)
    return kind(**values)


def plain(value: Any) -> Any:
    """Return kio's entity, or our decoded message, as dicts of plain values."""
    if isinstance(value, SimpleNamespace):
        return {name: plain(found) for name, found in vars(value).items()}
    if is_dataclass(value):
        return {ours(each): plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    return value.bytes if isinstance(value, UUID) else value


def ours(each: Any) -> str:
    """Return our name of kio's field, without the unit of durations."""
    kafka_type = each.metadata.get("kafka_type", "")
    name = f"{each.name}_ms" if kafka_type.startswith("timedelta") else each.name
    return RENAMED.get(name, name.removeprefix("v3_and_below_").removesuffix("_v3_and_below"))


def assert_same(kios: Any, our: Any) -> None:
    """Compare kio's values with ours, which may also have fields of other versions."""
    if isinstance(kios, dict):
        for name, value in kios.items():
            assert_same(value, our[name if name in our else f"{name}_or_member_epoch"])  # renamed after Kafka 4.2
    elif isinstance(kios, list):
        assert len(kios) == len(our)
        for one, other in zip(kios, our, strict=True):
            assert_same(one, other)
    else:
        assert our == (bytes(16) if kios is None and isinstance(our, bytes) else kios)


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=IDS)
def test_messages_of_kio_are_decoded_and_encoded_identically(api: SchemaApi, version: int) -> None:
    for kind, definition in (
        (load_request_schema(api.key, version), api.request),
        (load_response_schema(api.key, version), api.response),
    ):
        flexible = version >= api.flexible
        assert kind.__flexible__ is flexible
        for seed in range(20):
            written = entity(kind, random.Random(seed))
            data = encoded(written)
            read = plain(definition.decode(CompactReader(data), version, flexible))
            assert_same(plain(written), read)
            assert definition.encode(read, version, flexible) == data


def encoded(written: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(written))(buffer, written)
    return buffer.getvalue()


def test_fields_of_a_newer_broker_are_skipped() -> None:
    """kio 0.6.5 raises KeyError for such a field, and ValueError for an unknown error code."""
    added = b"\1\x09\3abc"  # one tagged field, number 9, three bytes
    answer = HEARTBEAT.decode(b"\0\0\0\5\0" + b"\0\0\0\0" + b"\x03\xe7" + added, 4)
    assert answer.error_code == 999
    assert ErrorCode(answer.error_code).name == "ERROR_999"


def test_null_is_refused_for_a_field_that_is_not_nullable() -> None:
    with pytest.raises(ValueError, match="null where"):
        CONSUMER_SUBSCRIPTION.decode(CompactReader(b"\0\0" + b"\0\0\0\1" + b"\xff\xff" + bytes(4)), 0, False)
    with pytest.raises(ValueError, match="null where"):
        CONSUMER_SUBSCRIPTION.decode(CompactReader(b"\0\0" + b"\xff\xff\xff\xff" + bytes(4)), 0, False)


def test_a_field_that_no_version_has_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Heartbeat has no \['group'\]"):
        HEARTBEAT(group="g")
    with pytest.raises(TypeError, match=r"no such fields: \['topic'\]"):
        METADATA(topics=[{"topic": "t"}]).encode(9, 1, "c")


@pytest.mark.parametrize("line", ["name string", "name: string 5-", "name: [string", "name:int32"])
def test_an_unparsable_definition_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a field of a message"):
        structure(line)


@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_any_bytes_decode_or_raise_value_error(chosen: tuple[SchemaApi, int], data: bytes) -> None:
    api, version = chosen
    with suppress(ValueError):
        api.decode(data, version)


@pytest.mark.parametrize(
    ("installed", "named"),
    [("0.1.0", "0.1.0"), ("0.1.1.dev5+g12ab34", "0.1.1.dev5-g12ab34"), ("0+unknown", "0-unknown")],
)
def test_brokers_learn_the_installed_version(monkeypatch: pytest.MonkeyPatch, installed: str, named: str) -> None:
    monkeypatch.setattr(messages, "version", lambda: installed)
    body = messages.api_versions().body
    assert (body["client_software_name"], body["client_software_version"]) == ("penstock", named)

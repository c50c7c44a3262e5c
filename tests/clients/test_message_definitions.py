"""Messages have the fields of Kafka's own definitions, from the jar of the dev broker."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

import penstock.pipeline.java.jar_lock
from penstock.clients.protocol import admin_messages, messages, streams_messages, telemetry_messages
from penstock.clients.protocol.schema import _PRIMITIVES, SchemaApi, Structure, Type, _Array, _Nullable, _Number
from penstock.testing.broker.apis import SERVED

ROOT = Path(__file__).resolve().parents[2]
MODULES = (admin_messages, messages, streams_messages, telemetry_messages)
#: Record batches are opaque bytes in a message.
RECORDS = {"records": "bytes"}
#: Each message with the lowest version that a client sends or that the in-memory broker serves.
APIS = {
    **{api: api.lowest for module in MODULES for api in vars(module).values() if isinstance(api, SchemaApi)},
    **{served.api: served.lowest for served in SERVED.values()},
}
#: Prefixes and suffixes in Kafka's field names that mark versions, or fields that only brokers send.
PREFIXES = "v3_and_below_"
SUFFIXES = "_v3_and_below"


@pytest.fixture(scope="module")
def definitions() -> zipfile.ZipFile:
    lock = penstock.pipeline.java.jar_lock.read_lock(ROOT / "penstock" / "dev" / "broker.lock")
    (jar,) = penstock.pipeline.java.jar_lock.fetch_jars([found for found in lock if found.name == "kafka-clients"])
    return zipfile.ZipFile(jar)


def defined(jar: zipfile.ZipFile, name: str) -> dict[str, Any]:
    text = jar.read(f"common/message/{name}.json").decode()
    found: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    return found


def snake(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return words.removeprefix(PREFIXES).removesuffix(SUFFIXES)


def theirs(listed: list[dict[str, Any]], shared: dict[str, Any], version: int) -> list[Any]:
    """Return a definition's fields in a version: name, type, tag, and the fields inside."""
    found = []
    for each in listed:
        if has(each["versions"], version):
            kind = each["type"].removeprefix("[]")
            inner = each.get("fields") or shared.get(kind)
            item = theirs(inner, shared, version) if inner else encoding(_PRIMITIVES[RECORDS.get(kind, kind)]())
            is_array = each["type"] != kind
            is_nullable = bool(inner) and not is_array and has(each.get("nullableVersions", "none"), version)
            found.append((snake(each["name"]), is_array, is_nullable, item, each.get("tag")))
    return found


def encoding(kind: Type) -> tuple[str, str]:
    return type(kind).__name__, kind._struct.format if isinstance(kind, _Number) else ""


def has(versions: str, version: int) -> bool:
    if versions == "none":
        return False
    first, more, last = re.fullmatch(r"(\d+)(\+?)(?:-(\d+))?", versions).groups()  # type: ignore[union-attr]
    return int(first) <= version <= (1 << 15 if more else int(last or first))


def ours(definition: Structure, version: int) -> list[Any]:
    """Return the same for Penstock's definition."""
    found = []
    for each in definition._fields:
        if each.since <= version <= each.until:
            kind = each.type.item if isinstance(each.type, _Nullable) else each.type
            is_array = isinstance(kind, _Array)
            item = kind.item if isinstance(kind, _Array) else kind
            is_structure = isinstance(item, Structure)
            is_nullable = is_structure and not is_array and isinstance(each.type, _Nullable)
            inner = ours(item, version) if isinstance(item, Structure) else encoding(item)
            found.append((each.name, is_array, is_nullable, inner, each.tag))
    return found


@pytest.mark.broker  # the jars of this Kafka version
@pytest.mark.parametrize(("api", "lowest"), APIS.items(), ids=lambda value: getattr(value, "name", ""))
def test_the_definitions_match_those_of_kafka(definitions: zipfile.ZipFile, api: SchemaApi, lowest: int) -> None:
    for kind, definition in (("Request", api.request), ("Response", api.response)):
        message = defined(definitions, api.name + kind)
        assert message["apiKey"] == api.key
        most = int(message["validVersions"].rpartition("-")[2])
        assert api.highest <= most
        flexible = message["flexibleVersions"].rstrip("+")
        assert flexible == ("none" if api.flexible > most else str(api.flexible))
        shared = {found["name"]: found["fields"] for found in message.get("commonStructs", [])}
        for version in range(max(lowest, int(message["validVersions"].partition("-")[0])), api.highest + 1):
            assert ours(definition, version) == theirs(message["fields"], shared, version), f"version {version}"

"""The heartbeat that joins a streams group, compared byte by byte with Kafka Streams' own (4.3.1).

See heartbeat_goldens/README.md.
"""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from pathlib import Path
from uuid import UUID

import pytest

from penstock.clients.group import streams_messages
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.streams_values import Heartbeat, Report, Tasks
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.group.assignment.streams_topology import streams_topology
from tests.goldens import case as golden
from tests.goldens import interpreter

HERE = Path(__file__).parent
GOLDENS = HERE / "heartbeat_goldens"
FOLDERS = (HERE.parent / "goldens" / "cases", HERE.parent / "goldens" / "wide", GOLDENS / "cases")
#: Keys of a case's configuration that are not part of the description.
OTHER_KEYS = ("emit.interval.ms", "deserialization.exception.handler", "processing.exception.handler")
VERSION = 0


@cache
def recorded() -> dict[str, str | None]:
    found: dict[str, str | None] = json.loads(gzip.decompress((GOLDENS / "heartbeats.json.gz").read_bytes()))
    return found


def request(file: Path) -> bytes:
    case = golden.read(file)
    settings = {name: value for name, value in case["config"].items() if name not in OTHER_KEYS}
    config = StreamsConfig({"bootstrap.servers": "unused:1", **settings})
    topology = streams_topology(interpreter.build(case).internal_builder.build_subtopologies(config), config)
    member = GroupMemberConfig(config["application.id"])
    joining = Heartbeat(0, 0, -1, Report(UUID(int=(1 << 64) + 2)), Tasks())
    message = streams_messages.heartbeat(member, None, topology, "member", joining, VERSION)
    return message.api.request.encode(message.body, VERSION, flexible=True)


def files() -> list[Path]:
    return [file for folder in FOLDERS for file in sorted(folder.glob("*.json")) if file.name in recorded()]


@pytest.mark.parametrize("file", [file for file in files() if recorded()[file.name]], ids=lambda file: file.stem)
def test_the_heartbeat_has_the_bytes_of_kafka_streams(file: Path) -> None:
    expected = recorded()[file.name]
    assert expected is not None
    assert request(file) == base64.b64decode(expected)


def test_every_recordable_topology_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    compared = [file for file in files() if recorded()[file.name]]
    refused = sorted(name for name, request in recorded().items() if request is None)
    with capsys.disabled():
        print(f"\nheartbeats compared with Kafka Streams': {len(compared)} of {len(recorded())}")
    assert len(files()) == len(recorded())
    assert refused == ["cogroup_with_key_change.json", "fuzz_1056.json", "wide_10219.json"], "Kafka Streams cannot"

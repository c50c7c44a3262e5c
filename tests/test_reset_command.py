"""penstock reset, on an application that has run; and what penstock plan learns from its group while it runs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli import cli
from penstock.supervisor.offline.application_reset import ApplicationReset
from penstock.topology.config.streams_config import StreamsConfig
from tests.command_stage import PARTITIONS, Stage, running
from tests.topics import create_topics, topic_names
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
RECORDS = 40
APP = """\
from penstock import Serdes, StreamsBuilder

def topology():
    builder = StreamsBuilder()
    words = builder.stream("@SOURCE@", key_serde=Serdes.string(), value_serde=Serdes.string())
    words.select_key(lambda key, value: key).group_by_key().count(store="counts")
    return builder.build()
"""


RENAMED = APP.replace('store="counts"', 'store="totals"')


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    with running(folder, bootstrap_servers, APP, tasks=2 * PARTITIONS, session_timeout_ms=6_000) as stage:
        stage.produce(*((f"k{number}", "x") for number in range(RECORDS)))
        eventually(lambda: stage.json("status")["totals"]["records_processed"] == 2 * RECORDS)
        yield stage


def topics(stage: Stage) -> set[str]:
    found = stage.admin.list_topics(timeout=PATIENCE_SECONDS).topics
    return {name for name in found if name.startswith(f"{stage.application_id}-")}


def plan_elsewhere(stage: Stage, app: str, name: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the output of plan on a host without state."""
    (stage.folder / f"{name}.py").write_text(app.replace("@SOURCE@", stage.source))
    elsewhere = ("-c", f"state.dir={stage.folder / 'elsewhere'}")
    result = stage.run("plan", f"{name}:topology", "--json", *elsewhere)
    return result.exit_code, json.loads(result.stdout) if result.stdout else {"error": result.stderr}


@pytest.mark.slow
def test_plan_on_a_host_without_state_asks_the_running_group(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(stage.folder)
    code, same = plan_elsewhere(stage, APP, "plan_same")
    assert (code, same["verdict"], same["findings"]) == (0, "safe", [])
    assert same["compared"][1] == {"with": f"the group {stage.application_id}: 2 of 2 members", "verdict": "safe"}
    code, renamed = plan_elsewhere(stage, RENAMED, "plan_renamed")
    assert (code, renamed["verdict"]) == (3, "refuse")
    assert "the store is now called totals" in renamed["findings"][0]["text"]


def test_plan_and_reset_with_broker_side_assignment(
    tmp_path: Path, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"group_protocol": "streams", "num_stream_threads": 1, "penstock_static_membership": False}
    with running(tmp_path, bootstrap_servers, APP, tasks=2 * PARTITIONS, **settings) as stage:
        assert plan_elsewhere(stage, APP, "streams_same")[1]["findings"] == []
        code, renamed = plan_elsewhere(stage, RENAMED, "streams_renamed")
        assert (code, renamed["verdict"]) == (3, "refuse")
        changelog = f"{stage.application_id}-totals-changelog"
        assert any(f"the changelog is now called {changelog}" in found["text"] for found in renamed["findings"])
        elsewhere = ("-c", f"state.dir={tmp_path / 'elsewhere'}")
        members = stage.run("reset", stage.topology, "--execute", *elsewhere)
        assert f"The group {stage.application_id} is STABLE and has members: " in members.stderr
        stage.produce(*((f"k{number}", "x") for number in range(RECORDS)))
        eventually(lambda: stage.json("status")["totals"]["records_processed"] == 2 * RECORDS)
        stage.stop()
        done = stage.json("reset", stage.topology, "--execute", "--wait", "60")
        assert sum(row["committed"] or 0 for row in done["offsets"]) == RECORDS
        again = stage.json("reset", stage.topology)
        assert {row["committed"] for row in again["offsets"]} == {0}


@pytest.mark.slow
def test_reset_moves_offsets_deletes_topics_and_state(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(stage.folder)
    refused = stage.run("reset", stage.topology, "--execute")
    assert refused.exit_code == 1
    assert "The application runs on this host" in refused.stderr
    elsewhere = ("-c", f"state.dir={stage.folder / 'elsewhere'}")
    members = stage.run("reset", stage.topology, "--execute", *elsewhere)
    assert members.exit_code == 1
    assert f"The group {stage.application_id} is STABLE and has members: " in members.stderr

    stage.stop()
    internal = {f"{stage.application_id}-counts-{kind}" for kind in ("changelog", "repartition")}
    assert topics(stage) == internal
    planned = stage.run("reset", stage.topology)
    assert planned.exit_code == 0, planned.output
    assert planned.stdout.startswith("Dry run: nothing is changed. Add --execute to do this.\n")
    assert max(len(line) for line in planned.stdout.splitlines() if stage.application_id in line) < 200
    assert topics(stage) == internal

    done = stage.json("reset", stage.topology, "--execute", "--wait", "30")
    assert sum(row["committed"] or 0 for row in done["offsets"]) == RECORDS
    assert {row["offset"] for row in done["offsets"]} == {0}
    assert set(done["internal_topics"]) == internal
    assert len(done["tasks"]) == PARTITIONS
    eventually(lambda: topics(stage) == set())
    assert stage.json("reset", stage.topology)["tasks"] == []

    stage.start()
    eventually(lambda: stage.json("status")["totals"]["records_processed"] == 2 * RECORDS)
    rows = [line for line in stage.run("state", "export", "counts").stdout.splitlines() if '"value": 1' in line]
    assert len(rows) == RECORDS  # all records read again, and counted from zero
    stage.stop()


def test_reset_targets_move_offsets_as_named(stage: Stage) -> None:
    stage.stop()

    def offsets(*options: str) -> list[int]:
        asked = stage.json("reset", "--input-topic", stage.source, *options)
        return [row["offset"] for row in asked["offsets"]]

    ends = offsets("--to-latest")
    assert sum(ends) == RECORDS
    assert offsets("--to-earliest") == [0] * PARTITIONS
    assert offsets("--by-duration", "PT1H") == offsets("--by-duration", "90m") == [0] * PARTITIONS
    assert offsets("--to-datetime", "2035-01-01T00:00:00+00:00") == ends
    assert offsets("--shift-by", "-1") == [end - 1 for end in ends]
    assert offsets("--shift-by", "5") == ends


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "Give the topology"),
        (("--input-topic", "x", "--to-latest", "--shift-by", "1"), "Give one of"),
        (("--input-topic", "x", "--to-datetime", "soon"), "is not a date and time"),
        (("--input-topic", "x", "--by-duration", "P"), "is not a duration"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: tuple[str, ...], part: str) -> None:
    result = CliRunner().invoke(cli, ["reset", *arguments, "-c", "application.id=a", "-c", "bootstrap.servers=b:1"])
    assert result.exit_code == 2
    assert part in result.stderr


def test_the_error_names_an_unknown_topic(stage: Stage) -> None:
    stage.stop()
    result = stage.run("reset", "--input-topic", "no-such-topic")
    assert result.exit_code == 1
    assert "There is no topic no-such-topic" in result.stderr


def test_topics_of_a_group_with_a_longer_name_are_left_alone(stage: Stage) -> None:
    stage.stop()
    other = f"{stage.application_id}-two"
    topic = f"{other}-counts-changelog"
    stage.make_topics(topic)
    assert topic in stage.json("reset", "--input-topic", stage.source)["internal_topics"]
    consumer = Consumer({"bootstrap.servers": stage.bootstrap_servers, "group.id": other})
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        assert stage.json("reset", "--input-topic", stage.source)["kept_topics"] == [topic]
    finally:
        consumer.close()


def test_deleted_topics_are_not_listed_any_more(bootstrap_servers: str, tmp_path: Path) -> None:
    application_id = f"many-topics-{uuid.uuid4().hex[:8]}"
    topics = [f"{application_id}-store{number}-changelog" for number in range(40)]  # the broker needs time for so many
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    create_topics(admin, *(NewTopic(topic, PARTITIONS, 1) for topic in topics))
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers, "state.dir": str(tmp_path)}
    with ApplicationReset(StreamsConfig(config)) as reset:
        reset.delete_topics(topics)
        assert not set(topics) & set(topic_names(admin))

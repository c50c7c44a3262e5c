"""penstock status, top, lag, threads, pause, resume, on a real application."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli import LAZY_COMMANDS, cli
from penstock.supervisor.control.control_socket import QUESTION_BYTES_MAX, SOCKET_NAME, socket_address
from tests.command_stage import APP, PARTITIONS, Stage, running
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Stage]:
    with running(tmp_path_factory.mktemp("stage"), bootstrap_servers) as stage:
        yield stage


@pytest.mark.parametrize("name", LAZY_COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(100) == LAZY_COMMANDS[name][1]


def test_status_shows_the_application_in_80_columns(stage: Stage) -> None:
    stage.produce(*((f"k{number}", "x") for number in range(40)))
    eventually(lambda: stage.json("status")["totals"]["records_processed"] >= 40)

    result = stage.run("status", "--tasks")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == f"{stage.application_id} is RUNNING"
    assert lines[1].startswith(f"2 threads, {PARTITIONS} tasks, ")
    assert max(len(line) for line in lines if not line.startswith("state in /")) <= 80
    assert sum("RUNNING" in line and "MiB" in line for line in lines) == 2
    assert {"0_0", "0_1", "0_2", "0_3"} <= {line.split()[0] for line in lines if line.split()}


def test_status_as_json_is_complete(stage: Stage) -> None:
    found = stage.json("status")
    assert (found["application_id"], found["state"], found["paused"]) == (stage.application_id, "RUNNING", False)
    assert stage.process is not None
    assert found["supervisor"]["pid"] == stage.process.pid
    assert [thread["number"] for thread in found["threads"]] == [1, 2]
    for thread in found["threads"]:
        os.kill(thread["pid"], 0)
        assert thread["rss_bytes"] > 1_000_000
    partitions = [p["partition"] for thread in found["threads"] for task in thread["tasks"] for p in task["partitions"]]
    assert sorted(partitions) == list(range(PARTITIONS))


def test_a_single_application_in_the_state_directory_is_found_without_its_name(stage: Stage) -> None:
    result = stage.run("status", "--json", "-c", f"state.dir={stage.folder / 'state'}", configured=False)
    assert json.loads(result.output)["application_id"] == stage.application_id


def test_top_repeats_the_status(stage: Stage) -> None:
    lines = stage.run("top", "-n", "2", "--interval", "0.1", "--json").output.splitlines()
    assert [json.loads(line)["application_id"] for line in lines] == [stage.application_id] * 2
    assert stage.run("top", "-n", "1").output.startswith(f"{stage.application_id} is ")


def test_lag_names_each_partition_and_a_pause_stops_processing(stage: Stage) -> None:
    eventually(lambda: {row["lag"] for row in stage.json("lag")} == {0})
    rows = stage.json("lag")
    assert [(row["topic"], row["partition"]) for row in rows] == [(stage.source, n) for n in range(PARTITIONS)]

    assert stage.run("pause").output.startswith("Paused: ")
    before = stage.json("status")["totals"]["records_processed"]
    assert stage.run("status").output.startswith(f"{stage.application_id} is PAUSED\n")
    stage.produce(*((f"k{number}", "x") for number in range(40)))
    until = stage.json("status")["uptime_seconds"] + 0.5  # ten heartbeats
    eventually(lambda: stage.json("status")["uptime_seconds"] > until)
    assert stage.json("status")["totals"]["records_processed"] == before
    eventually(lambda: sum(row["lag"] for row in json.loads(stage.run("lag", "--json").stdout)) == 40)
    assert stage.json("status")["totals"]["lag"] == 40
    assert max(len(line) for line in stage.run("lag").output.splitlines()) <= 80
    assert stage.run("lag").stderr.startswith("Paused: ")
    assert stage.run("resume").output == "Resumed.\n"
    eventually(lambda: stage.json("status")["totals"]["records_processed"] == before + 40)


def test_a_restarted_thread_is_another_process_with_the_same_tasks(stage: Stage) -> None:
    eventually(stage.is_settled)
    before = {thread["number"]: thread for thread in stage.json("status")["threads"]}
    done = stage.json("threads", "restart", "2")
    assert done["old_pid"] == before[2]["pid"] != done["pid"]
    assert done["thread"] == before[2]["name"]
    eventually(stage.is_settled)
    after = {thread["number"]: thread for thread in stage.json("status")["threads"]}
    assert [task["task_id"] for task in after[2]["tasks"]] == [task["task_id"] for task in before[2]["tasks"]]
    assert after[1]["pid"] == before[1]["pid"]
    assert stage.json("status")["failed_stream_threads"] == 0
    assert after[2]["restarts"] == before[2]["restarts"]


def test_threads_are_added_and_removed(stage: Stage) -> None:
    assert stage.run("threads", "add").output.startswith("Added StreamThread-3; ")
    eventually(lambda: [thread["number"] for thread in stage.json("status")["threads"]] == [1, 2, 3])
    eventually(stage.is_settled)
    assert stage.run("threads", "remove", "3").output == "Removed StreamThread-3.\n"
    assert [thread["number"] for thread in stage.json("status")["threads"]] == [1, 2]
    eventually(stage.is_settled)


def test_a_new_thread_gets_tasks_of_each_subtopology(tmp_path: Path, bootstrap_servers: str) -> None:
    first = 'words.group_by_key().count(store="first")\n    '
    two = APP.replace("words.group_by_key()", f"{first}words.select_key(lambda key, word: word).group_by_key()")
    with running(tmp_path, bootstrap_servers, two, 2 * PARTITIONS, num_stream_threads=1) as stage:
        stage.run("threads", "add")
        eventually(lambda: all(len(tasks_of(thread)) == PARTITIONS for thread in stage.json("status")["threads"]))
        threads = stage.json("status")["threads"]
        assert [sorted(task[0] for task in tasks_of(thread)) for thread in threads] == [["0", "0", "1", "1"]] * 2


def tasks_of(thread: dict[str, Any]) -> list[str]:
    return [task["task_id"] for task in thread["tasks"]]


def test_impossible_actions_are_refused_with_a_message(stage: Stage) -> None:
    result = stage.run("threads", "restart", "7")
    assert result.exit_code == 1
    assert "Cannot restart stream thread 7: it does not exist. Existing ones: " in result.output
    assert stage.run("threads", "restart").exit_code == 2


def test_a_killed_process_appears_among_the_errors(stage: Stage) -> None:
    eventually(stage.is_settled)
    victim = stage.json("status")["threads"][0]
    os.kill(victim["pid"], signal.SIGKILL)
    eventually(lambda: stage.json("status")["errors_total"] >= 1)
    assert f"process {victim['pid']}, died: SIGKILL" in stage.json("status")["errors"][-1]["message"]
    assert "1 error since the start" in stage.run("status").output
    eventually(stage.is_settled)


# -- the socket itself


def converse(stage: Stage, question: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as line, line.makefile("rb") as answers:
        line.settimeout(PATIENCE_SECONDS)
        with socket_address(stage.folder / "state" / stage.application_id) as address:
            line.connect(address)
        line.sendall(question)
        return answers.readline()


def test_only_the_owner_can_open_the_socket(stage: Stage) -> None:
    found = (stage.folder / "state" / stage.application_id / SOCKET_NAME).stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("question", "part"),
    [
        (b"status\n", "Expected {"),
        (b"[1]\n", "Expected {"),
        (b"[" * 60_000 + b"\n", "Expected {"),
        (b'{"command": "__init__"}\n', "There is no command '__init__'; there are "),
        (b'{"command": ["status"]}\n', "There is no command ['status']"),
        (b'{"command": "status", "arguments": []}\n', "must be a JSON object"),
        (b'{"command": "status", "arguments": {"x": 1}}\n', "unexpected keyword argument 'x'"),
        (b'{"command": "restart_thread"}\n', "missing a required argument: 'name'"),
        (b'{"command": "restart_thread", "arguments": {"name": 1}}\n', "name cannot be 1"),
        (b'{"command": "remove_thread", "arguments": {"timeout": true}}\n', "timeout cannot be True"),
        (b"x" * (QUESTION_BYTES_MAX + 1), "at most"),
    ],
)
def test_a_malformed_request_gets_an_error_and_affects_no_other(stage: Stage, question: bytes, part: str) -> None:
    assert part in json.loads(converse(stage, question))["error"]["message"]
    assert stage.json("status")["state"] in ("RUNNING", "REBALANCING")


def test_a_dead_application_is_not_running_and_its_socket_is_replaced(tmp_path: Path, bootstrap_servers: str) -> None:
    with running(tmp_path, bootstrap_servers) as stage:
        stage.stop(signal.SIGKILL)
        assert (stage.folder / "state" / stage.application_id / SOCKET_NAME).exists()
        result = stage.run("status")
        assert result.exit_code == 3
        directory = tmp_path / "state" / stage.application_id
        assert f"No application runs in {directory} any more: its supervisor was killed" in result.output
        stage.start()
        assert stage.json("status")["state"] == "RUNNING"
        stage.stop()
        assert not (stage.folder / "state" / stage.application_id / SOCKET_NAME).exists()
        assert stage.run("pause").exit_code == 3

"""penstock branch create|list|delete: branches of an application under load, on a real broker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typing_extensions import override

from penstock.cli.branches import branch_layout
from penstock.cli.branches.branch_brokers import BranchBrokers
from penstock.cli.branches.branch_layout import BranchLayout
from penstock.cli.branches.branching import Branching
from penstock.cli.running_application import NotRunningError, find
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.supervisor.queries.changelog_tail import ChangelogClients
from penstock.supervisor.source.config_loader import load_config
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError, TopologyError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.control.messages import TopologyTopics
from tests.branch_stage import (
    TASKS,
    as_keywords,
    as_options,
    assert_equal_from_the_cut,
    assert_follows,
    load,
    on_host,
    original,
    started,
    until_processed,
)
from tests.command_stage import Stage
from tests.conftest import MakeTopic
from tests.exchange_stage import until_shared
from tests.free_port import free_port, free_ports
from tests.topics import topic_names
from tests.waiting import PATIENCE_SECONDS

BROKER = pytest.mark.broker
LIMIT_SECONDS = 10.0  # a busy machine commits later
EXACTLY_ONCE: dict[str, Any] = {"processing_guarantee": "exactly_once_v2"}
AT_LEAST_ONCE: dict[str, Any] = {"processing_guarantee": "at_least_once"}
STREAMS_GROUP: dict[str, Any] = {**EXACTLY_ONCE, "group_protocol": "streams", "penstock_static_membership": False}


class Interrupted(Branching):
    """Calls a function within the first hold, or before the first record is copied."""

    def __init__(self, stage: Stage, name: str, lines: list[str]) -> None:
        config = load_config(stage.config_file, {}, (), None)
        super().__init__(config, name, f"{name}.", LIMIT_SECONDS, 0, lines.append, lambda *_: None)
        self.in_hold: Callable[[], object] = lambda: None
        self.before_copy: Callable[[], object] = lambda: None

    @override
    def _read(self, *arguments: Any) -> Any:
        action, self.in_hold = self.in_hold, lambda: None
        action()
        return super()._read(*arguments)

    @override
    def _copying(self, *arguments: Any) -> Any:
        self.before_copy()
        return super()._copying(*arguments)


def create(stage: Stage, name: str) -> dict[str, Any]:
    result = stage.run("branch", "create", name, "--stop-at-most", str(LIMIT_SECONDS), "--wait", "120", "--json")
    assert result.exit_code == 0, (result.output, result.exc_info)
    made: dict[str, Any] = json.loads(result.stdout)
    return made


@BROKER
@pytest.mark.slow
@pytest.mark.parametrize("settings", [EXACTLY_ONCE, AT_LEAST_ONCE, STREAMS_GROUP], ids=["eos", "alos", "streams"])
def test_a_branch_writes_what_the_original_writes_from_the_cut_on(
    tmp_path: Path, bootstrap_servers: str, settings: dict[str, Any]
) -> None:
    with original(tmp_path, bootstrap_servers, **settings) as stage:
        name = f"{stage.application_id}-next"
        total = 0
        for number in range(3):
            with load(stage) as feeding:
                feeding.until_more(2_000)
                made = create(stage, f"{name}{number}")
                feeding.until_more(1_000)
            total += feeding.written
            with started(stage, f"{name}{number}") as branch:
                until_processed(stage, total)
                assert assert_equal_from_the_cut(stage, branch, made["outputs"]) > 500
            deleted = stage.json("branch", "delete", f"{name}{number}", "--execute", "--wait", "120")
            assert deleted["branch"]["topics"] == made["topics"]
        assert not [topic for topic in topic_names(stage.admin) if topic.startswith(name)]


@BROKER
@pytest.mark.slow
@pytest.mark.parametrize("settings", [EXACTLY_ONCE, STREAMS_GROUP], ids=["eos", "streams"])
def test_an_application_on_two_hosts_is_cut_at_one_point(
    tmp_path: Path, bootstrap_servers: str, settings: dict[str, Any]
) -> None:
    here, there = free_ports(2)
    with original(tmp_path, bootstrap_servers, **settings, **as_keywords(on_host(here))) as stage:
        name = f"{stage.application_id}-next"
        options = as_options({**on_host(there), "state.dir": str(tmp_path / "other host"), "penstock.sink.prefix": ""})
        with started(stage, stage.application_id, *options) as other:
            until_shared(stage, stage.application_id)
            with load(stage) as feeding:
                feeding.until_more(2_000)
                made = create(stage, name)
                feeding.until_more(1_000)
                lines: list[str] = []
                with Interrupted(stage, f"{name}2", lines) as branching:
                    branching.in_hold = lambda: kill_a_thread(tmp_path / "other host", stage)
                    again = branching.make()
                assert any("No cut: " in line for line in lines), lines
                feeding.until_more(500)
            own_ports = as_options(on_host(free_port()))
            for branch, outputs in ((name, made["outputs"]), (f"{name}2", dict(again.record.outputs))):
                assert_follows(stage, branch, feeding, outputs, *own_ports)
            assert other.process.poll() is None


def kill_a_thread(state_dir: Path, stage: Stage) -> None:
    """Kill a stream thread of the application with this state directory."""
    status = stage.json("status", "-c", f"state.dir={state_dir}")
    os.kill(status["threads"][0]["pid"], signal.SIGKILL)


@BROKER
@pytest.mark.slow
def test_a_thread_that_is_killed_during_the_hold_spoils_only_that_attempt(
    tmp_path: Path, bootstrap_servers: str
) -> None:
    with original(tmp_path, bootstrap_servers) as stage, load(stage) as feeding:
        feeding.until_more(2_000)
        lines: list[str] = []
        name = f"{stage.application_id}-next"
        victim = stage.json("status")["threads"][0]["pid"]
        with Interrupted(stage, name, lines) as branching:
            branching.in_hold = lambda: os.kill(victim, signal.SIGKILL)
            made = branching.make()
        assert victim not in [thread["pid"] for thread in stage.json("status")["threads"]]
        assert any("No cut: the stream threads have not held" in line for line in lines), lines
        feeding.until_more(1_000)
        assert_follows(stage, name, feeding, dict(made.record.outputs))


@BROKER
@pytest.mark.slow
def test_an_unfinished_branch_does_not_start_and_can_be_created_again(tmp_path: Path, bootstrap_servers: str) -> None:
    with original(tmp_path, bootstrap_servers) as stage, load(stage) as feeding:
        feeding.until_more(2_000)
        name = f"{stage.application_id}-next"

        def interrupt() -> None:
            raise KeyboardInterrupt

        with Interrupted(stage, name, []) as branching:
            branching.before_copy = interrupt
            with pytest.raises(KeyboardInterrupt):
                branching.make()
        (listed,) = stage.json("branch", "list")
        assert (listed["name"], listed["ready"]) == (name, False)
        assert "unfinished: create it again, or delete it" in stage.run("branch", "list").stdout
        with started(stage, name) as branch:
            branch.process.wait()
            assert f"The branch {name} is not complete" in branch.log
        made = create(stage, name)
        again = stage.run("branch", "create", name)
        assert (again.exit_code, f"There is a branch {name} already" in again.stderr) == (1, True)
        with started(stage, name, "-c", "penstock.sink.prefix=") as branch:
            branch.process.wait()
            assert "would write to the output topics of the other application" in branch.log
        feeding.until_more(1_000)
        feeding.end()
        with started(stage, name) as branch:
            until_processed(stage, feeding.written)
            assert assert_equal_from_the_cut(stage, branch, made["outputs"]) > 500
            running = stage.run("branch", "delete", name, "--execute")
            assert running.exit_code != 0


@BROKER
@pytest.mark.slow
def test_offsets_and_changelogs_are_those_of_one_moment(tmp_path: Path, bootstrap_servers: str) -> None:
    """Time passes within the hold, after the changelogs are copied and before the committed offsets are read."""
    with original(tmp_path, bootstrap_servers) as stage, load(stage) as feeding:
        feeding.until_more(2_000)
        name = f"{stage.application_id}-next"
        with Interrupted(stage, name, []) as branching:
            committed = branching._original.committed

            def later(partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
                feeding.until_more(1_000)
                return committed(partitions)

            branching._original.committed = later  # type: ignore[method-assign]
            made = branching.make()
        feeding.until_more(1_000)
        assert_follows(stage, name, feeding, dict(made.record.outputs))


@BROKER
def test_ends_are_settled_when_no_transaction_is_open(bootstrap_servers: str, make_topic: MakeTopic) -> None:
    name = make_topic("settled")
    config = StreamsConfig({"application.id": name, "bootstrap.servers": bootstrap_servers})
    partition = TopicPartition(name, 0)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"value")
    assert producer.flush(PATIENCE_SECONDS) == 0
    with closing(BranchBrokers(config, ChangelogClients(config, name))) as brokers:
        looks = iter(range(20))
        assert brokers.settled_ends([partition], lambda: next(looks, None) is not None) is None
        producer.commit_transaction()
        assert brokers.settled_ends([partition], lambda: True) == {partition: 2}  # a record and a marker


@BROKER
def test_names_that_are_taken_are_refused_before_anything_is_made(tmp_path: Path, bootstrap_servers: str) -> None:
    with original(tmp_path, bootstrap_servers) as stage:
        before = _topics_of(stage)
        own = stage.run("branch", "create", stage.application_id)
        assert (own.exit_code, "is the application itself" in own.stderr) == (2, True)
        taken = f"{stage.application_id}-other"
        stage.make_topics(f"{taken}.{stage.sink}")
        refused = stage.run("branch", "create", taken)
        assert (refused.exit_code, "These topics exist, and are not those of" in refused.stderr) == (1, True)
        assert _topics_of(stage) - before == {f"{taken}.{stage.sink}"}
        assert stage.run("branch", "list").stdout == f"{stage.application_id} has no branches on this host.\n"
        unknown = stage.run("branch", "delete", taken, "--execute")
        assert (unknown.exit_code, f"has no branch {taken}" in unknown.stderr) == (2, True)


def _topics_of(stage: Stage) -> set[str]:
    """Return the topics with the application's name, which those of its branches have, too. Other tests make others."""
    return {topic for topic in topic_names(stage.admin) if stage.application_id in topic}


@BROKER
def test_each_command_says_what_comes_next(tmp_path: Path, bootstrap_servers: str) -> None:
    with original(tmp_path, bootstrap_servers) as stage:
        name = f"{stage.application_id}-next"
        made = stage.run("branch", "create", name, "--sink-prefix", "next-", "--stop-at-most", str(LIMIT_SECONDS))
        assert made.exit_code == 0, made.output
        assert f"  {stage.sink}-3 at offset 0\nStart it:\n  penstock run MODULE:TOPOLOGY" in made.stdout
        assert f"-c application.id={name} -c penstock.sink.prefix=next-" in made.stdout
        assert "Created 6 internal topics and 1 output topic." in made.stderr
        assert stage.run("branch", "list").stdout.startswith(f"{name}  cut ")
        planned = stage.run("branch", "delete", name).stdout
        assert f"Would delete {name}: 7 topics. Run it with --execute." in planned
        assert f"next-{stage.sink}\n" in planned
        assert f"Deleted {name}: 7 topics." in stage.run("branch", "delete", name, "--execute").stdout
        assert not [topic for topic in topic_names(stage.admin) if topic.startswith((name, "next-"))]


@BROKER
def test_a_branch_whose_file_is_gone_is_deleted_as_the_error_says(tmp_path: Path, bootstrap_servers: str) -> None:
    with original(tmp_path, bootstrap_servers) as stage:
        name = f"{stage.application_id}-next"
        assert stage.run("branch", "create", name, "--stop-at-most", str(LIMIT_SECONDS)).exit_code == 0
        (tmp_path / "state" / stage.application_id / "branches" / f"{name}.json").unlink()
        unknown = stage.run("branch", "delete", name, "--execute")
        assert unknown.exit_code == 2
        assert f"`penstock reset MODULE:TOPOLOGY -c application.id={name} --execute`" in " ".join(
            unknown.stderr.split()
        )
        assert (
            stage.run("reset", "--input-topic", stage.source, "-c", f"application.id={name}", "--execute").exit_code
            == 0
        )
        assert {topic for topic in topic_names(stage.admin) if topic.startswith(name)} == {f"{name}.{stage.sink}"}


@BROKER
def test_a_command_that_dies_lets_the_application_continue(tmp_path: Path, bootstrap_servers: str) -> None:
    with original(tmp_path, bootstrap_servers) as stage:
        config = load_config(stage.config_file, {}, (), None)
        with find(config) as running:
            held = running.ask("hold", {"seconds": LIMIT_SECONDS})
            assert len(held["tasks"]) == TASKS
            with pytest.raises(StreamsError, match="hold already"):
                running.ask("hold", {"seconds": LIMIT_SECONDS})
            assert running.ask("end_hold", {"hold": held["hold"]}) == {"changed": None}
            running.ask("hold", {"seconds": 3.0})
        stage.produce(("key", "value"))
        until_processed(stage, 1)


def layout(tasks: int = 2, **more: tuple[str, ...]) -> BranchLayout:
    """An application with one sub-topology that reads in, of two partitions."""
    topics = {"sources": ("in",), "repartition": (), "changelogs": ("app-counts-changelog",), "sinks": ("out",)}
    found = TopologyTopics(**{**topics, "outside": (), **more})
    return BranchLayout("app", "next", "next.", frozenset(TaskId(0, n) for n in range(tasks)), {0: found})


def test_what_cannot_be_branched_is_refused() -> None:
    counts = {"in": 2, "out": 1}
    layout().check(counts)
    with pytest.raises(StreamsError, match=r"tasks of app run neither on this host nor on one that it can ask: 0_1\."):
        layout(tasks=1).check(counts)
    with pytest.raises(TopologyError, match=r"rows-sink writes outside of Kafka"):
        layout(outside=("rows-sink",)).check(counts)
    with pytest.raises(TopologyError, match=r"it writes to in and reads it"):
        layout(sinks=("in",)).check(counts)


def test_tasks_are_awaited_that_are_still_being_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_layout, "LOOK_SECONDS", 0.0)
    errors = iter([StreamsError("being assigned"), StreamsError("being assigned")])
    progress: list[str] = []

    def look() -> str:
        if (error := next(errors, None)) is not None:
            raise error
        return "all"

    assert branch_layout.once_assigned(look, lambda what, *_: progress.append(what)) == "all"
    assert progress == ["Waiting until all tasks have been assigned"] * 2
    errors = iter([NotRunningError("gone")])
    with pytest.raises(NotRunningError):
        branch_layout.once_assigned(look, lambda *_: None)
    monkeypatch.setattr(branch_layout, "ASSIGNMENT_SECONDS", -1.0)
    errors = iter([StreamsError("these tasks are missing")])
    with pytest.raises(StreamsError, match="these tasks are missing"):
        branch_layout.once_assigned(look, lambda *_: None)


def test_only_internal_topics_and_outputs_are_renamed() -> None:
    found = layout(sources=("in", "app-moved-repartition"), repartition=("app-moved-repartition",))
    names = [found.renamed(topic) for topic in ("in", "app-moved-repartition", "app-counts-changelog")]
    assert names == ["in", "next-moved-repartition", "next-counts-changelog"]
    assert found.renamed_sink("out") == "next.out"

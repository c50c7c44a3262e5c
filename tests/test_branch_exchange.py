"""penstock branch cutover|rollback: which of two applications writes the real outputs, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.cli.branches.branch_layout import BranchLayout
from penstock.cli.branches.branch_record import BranchRecord, BranchRecords
from penstock.cli.branches.branching import branch_config
from penstock.cli.branches.common_stop import CommonStop
from penstock.cli.branches.exchange import Exchange
from penstock.supervisor.offline.application_reset import ApplicationReset, Move
from penstock.supervisor.source.state_places import application_directory
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import LockError, StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.branch_mark import BranchMark, BranchState, branch_marks, marked
from tests.branch_stage import APP, as_keywords, as_options, load, on_host, original
from tests.conftest import MakeTopic
from tests.exchange_stage import Operator, assert_as_of_one, before_step, operated, until_shared
from tests.free_port import free_port, free_ports
from tests.topics import topic_names

BROKER = pytest.mark.broker
PACE_SECONDS = 0.2
EXACTLY_ONCE: dict[str, Any] = {"processing_guarantee": "exactly_once_v2"}
AT_LEAST_ONCE: dict[str, Any] = {"processing_guarantee": "at_least_once"}
STREAMS_GROUP: dict[str, Any] = {**EXACTLY_ONCE, "group_protocol": "streams", "penstock_static_membership": False}
#: Calls of the command before which it is killed: ExchangeSide has these methods.
STEPS = (
    *("held:1", "limit:1", "limit:2", "stop:1", "stop:2", "wait_until_gone:1"),
    *("set_mark:1", "set_mark:2", "set_mark:3", "close:1"),
)
_S = BranchState


@BROKER
@pytest.mark.slow
@pytest.mark.parametrize("settings", [EXACTLY_ONCE, AT_LEAST_ONCE, STREAMS_GROUP], ids=["eos", "alos", "streams"])
def test_outputs_are_those_of_one_application_after_a_cutover_and_a_rollback(
    tmp_path: Path, bootstrap_servers: str, settings: dict[str, Any]
) -> None:
    with original(tmp_path, bootstrap_servers, **settings) as stage, load(stage, PACE_SECONDS) as feeding:
        name = f"{stage.application_id}-next"
        with operated(stage, name) as operator:
            feeding.until_more(500)
            done = operator.complete("cutover")
            assert (done["writer"], list(done["points"])) == (name, [stage.source])
            feeding.until_more(500)
            assert operator.complete("rollback")["writer"] == stage.application_id
            feeding.until_more(500)
            assert operator.complete("cutover")["writer"] == name
            feeding.until_more(500)
            feeding.end()
            assert assert_as_of_one(stage, feeding.written) > 4_000


@BROKER
@pytest.mark.slow
def test_applications_on_several_hosts_are_exchanged(tmp_path: Path, bootstrap_servers: str) -> None:
    """Each application has a second process, which the command reaches over HTTP."""
    first, *ports = free_ports(4)
    state = [{"state.dir": str(tmp_path / f"other host {number}")} for number in range(2)]
    hosts = [as_options(on_host(port)) for port in ports]
    settings = {**EXACTLY_ONCE, "num_stream_threads": 1, **as_keywords(on_host(first))}
    with original(tmp_path, bootstrap_servers, **settings) as stage, load(stage, PACE_SECONDS) as feeding:
        name, old = f"{stage.application_id}-next", stage.application_id
        parts = {old: ((), hosts[0] + as_options(state[0])), name: (hosts[1], hosts[2] + as_options(state[1]))}
        with operated(stage, name, parts) as operator:
            for command, writer in (("cutover", name), ("rollback", old)):
                for each in (old, name):
                    until_shared(stage, each)
                feeding.until_more(200)
                assert operator.complete(command)["writer"] == writer
            feeding.end()
            assert assert_as_of_one(stage, feeding.written, *as_options(on_host(free_port()))) > 1_000


@BROKER
@pytest.mark.slow
def test_a_command_that_is_killed_before_any_step_can_be_run_again(tmp_path: Path, bootstrap_servers: str) -> None:
    with (
        original(tmp_path, bootstrap_servers, session_timeout_ms=6_000) as stage,
        load(stage, PACE_SECONDS) as feeding,
        operated(stage, f"{stage.application_id}-next") as operator,
    ):
        for number, step in enumerate(STEPS):
            feeding.until_more(200)
            command = ("cutover", "rollback")[number % 2]
            operator.kill_command(command, step)
            operator.complete(command)
        feeding.end()
        assert assert_as_of_one(stage, feeding.written) > 4_000


@BROKER
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["kill_supervisor", "kill_thread"])
def test_processes_that_are_killed_before_any_step_leave_no_gap_and_no_repetition(
    tmp_path: Path, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    settings = {**EXACTLY_ONCE, "session_timeout_ms": 6_000, "penstock_worker_restart_max": 1_000}
    random = Random(7)
    with (
        original(tmp_path, bootstrap_servers, **settings) as stage,
        load(stage, PACE_SECONDS) as feeding,
        operated(stage, f"{stage.application_id}-next") as operator,
    ):
        for number, step in enumerate(STEPS):
            feeding.until_more(200)
            command, kill = ("cutover", "rollback")[number % 2], getattr(operator, victim)
            with monkeypatch.context() as patched:
                before_step(step, partial(kill, random.choice(operator.names)), patched)
                if operator.exchange(command).exit_code:
                    operator.start_missing()
            operator.complete(command)
        feeding.end()
        assert assert_as_of_one(stage, feeding.written) > 4_000


@BROKER
@pytest.mark.slow
def test_a_writer_that_has_run_on_undoes_the_first_step(tmp_path: Path, bootstrap_servers: str) -> None:
    with original(tmp_path, bootstrap_servers) as stage, load(stage, PACE_SECONDS) as feeding:
        name = f"{stage.application_id}-next"
        with operated(stage, name) as operator:
            feeding.until_more(200)
            operator.kill_command("cutover", "set_mark:2")
            operator.start(name, f"{name}.").process.wait()
            assert "is about to write the real outputs" in operator.log(name)
            operator.start(stage.application_id, "")
            feeding.until_more(200)
            undone = operator.exchange("cutover")
            assert (undone.exit_code, "The exchange is undone. Start" in undone.stderr) == (1, True), undone.output
            operator.complete("cutover")
            feeding.end()
            assert assert_as_of_one(stage, feeding.written) > 500


def test_a_limit_for_the_catch_up_is_not_exceeded_by_the_wait_for_tasks() -> None:
    """A shadow that cannot commit is not asked again when the limit is over, although tasks would still be awaited."""
    asked: list[None] = []

    class Restoring:
        @contextmanager
        def held(self, _seconds: float) -> Iterator[BranchLayout]:
            asked.append(None)
            raise StreamsError("a task is being restored")
            yield

    side: Any = Restoring()
    brokers: Any = None
    stop = CommonStop(side, side, brokers, 20.0, 0.0, lambda _line: None, lambda *_: None)
    with pytest.raises(StreamsError, match="a task is being restored"):
        stop.layouts()
    assert len(asked) == 1


@BROKER
@pytest.mark.slow
def test_the_commands_say_what_they_did_and_why_they_refuse(tmp_path: Path, bootstrap_servers: str) -> None:
    with original(tmp_path, bootstrap_servers) as stage:
        name, first = f"{stage.application_id}-next", stage.application_id
        unknown = stage.run("branch", "cutover", name)
        assert (unknown.exit_code, f"has no branch {name}" in unknown.stderr) == (2, True)
        with operated(stage, name) as operator:
            stage.produce(("key", "value"))
            already = stage.run("branch", "rollback", name)
            assert already.stdout.startswith(f"{first} writes the real outputs.\nStart it:\n  penstock run")
            done = stage.run("branch", "cutover", name, "--stop-at-most", "20", "--sink-prefix", "old-")
            assert done.exit_code == 0, done.output
            assert "Both stop at the same point" in done.stderr
            assert f"{name} writes the real outputs, after this point of the input:\n  {stage.source}-0" in done.stdout
            assert f"Start it:\n  penstock run MODULE:TOPOLOGY --config FILE -c application.id={name}\n" in done.stdout
            assert "  penstock run MODULE:TOPOLOGY --config FILE -c penstock.sink.prefix=old-\n" in done.stdout
            assert "writes the real outputs for" in stage.run("branch", "list").stdout
            assert f"old-{stage.sink}" in stage.json("branch", "list")[0]["topics"]
            assert operator.exchange("cutover").exit_code == 0  # nothing is left to do
            _refused(operator, first, "", "would write to the output topics of the other application")
            _refused(operator, name, f"{name}.", "its records would be missing there")
            deleted = stage.run("branch", "delete", name, "--execute", "--wait", "120")
            assert (deleted.exit_code, "penstock branch rollback" in deleted.stderr) == (1, True)
            operator.start(name, "")
            missing = operator.exchange("rollback")
            assert (missing.exit_code, f"{first} does not run on this host" in missing.stderr) == (3, True)
            operator.start(first, "old-")
            assert operator.exchange("rollback").exit_code == 0
            assert stage.run("branch", "delete", name, "--execute", "--wait", "120").exit_code == 0
        assert not [topic for topic in topic_names(stage.admin) if topic.startswith((name, "old-"))]


def _refused(operator: Operator, name: str, prefix: str, why: str) -> None:
    operator.start(name, prefix).process.wait()
    assert why in operator.log(name)


@BROKER
def test_a_version_with_another_input_is_refused(tmp_path: Path, bootstrap_servers: str, make_topic: MakeTopic) -> None:
    other = make_topic("other", 4)
    with original(tmp_path, bootstrap_servers) as stage:
        name = f"{stage.application_id}-next"
        assert stage.run("branch", "create", name, "--stop-at-most", "10").exit_code == 0
        module = stage.folder / f"{stage.topology.partition(':')[0]}.py"
        both = f'["{stage.source}", "{other}"]'
        text = APP.replace("@SINK@", stage.sink).replace('"@SOURCE@"', both)
        module.write_text(text)
        operator = Operator(stage, name)
        try:
            operator.start(name, f"{name}.")
            refused = operator.exchange("cutover")
            assert (refused.exit_code, "Both must have the same input" in refused.stderr) == (1, True), refused.output
            assert stage.is_settled()
        finally:
            operator.stop()


# -- the marks, without running applications


class Marked:
    """Two groups with one committed offset, and the file of a branch."""

    def __init__(self, folder: Path, bootstrap_servers: str, topic: str) -> None:
        values = {"application.id": topic, "bootstrap.servers": bootstrap_servers, "state.dir": str(folder)}
        self.config = StreamsConfig(values)
        self.topic, self.branch = topic, f"{topic}-next"
        application_directory(self.config).mkdir(parents=True)
        inputs = {topic: [topic], self.branch: [topic]}
        self.record = BranchRecord(self.branch, "next.", 0, (), inputs, cut_ms=1)
        BranchRecords(self.config).save(self.record)

    def set(self, original: BranchMark | None, branch: BranchMark, offset: int = 0) -> None:
        for config, mark in ((self.config, original), (branch_config(self.config, self.branch), branch)):
            with ApplicationReset(config) as group:
                metadata = "" if mark is None else marked("", mark)
                group.move([Move(TopicPartition(self.topic, 0), None, offset, metadata)])

    def states(self) -> tuple[str, str]:
        """Return the states of the original and of the branch."""
        found = []
        for config in (self.config, branch_config(self.config, self.branch)):
            with ApplicationReset(config) as group:
                (mark,) = branch_marks(group.committed([TopicPartition(self.topic, 0)]).values()) or [None]
                found.append("no mark" if mark is None else mark.state.name)
        original, branch = found
        return original, branch

    def exchange(self, to_branch: bool) -> BranchRecord:
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        with Exchange(self.config, self.record, to_branch, "old-", 10, None, nothing, nothing) as exchange:
            return exchange.run()


@pytest.fixture
def pair(tmp_path: Path, bootstrap_servers: str, make_topic: MakeTopic) -> Marked:
    return Marked(tmp_path, bootstrap_servers, make_topic("exchanged"))


@BROKER
def test_applications_that_have_stopped_at_the_same_point_are_exchanged(pair: Marked) -> None:
    pair.set(None, BranchMark(_S.SHADOW))
    assert pair.exchange(to_branch=True).points == {pair.topic: [0]}
    assert pair.states() == ("SHADOW", "WRITER")
    assert pair.exchange(to_branch=False).writer_since_ms is None
    assert pair.states() == ("WRITER", "SHADOW")


@BROKER
@pytest.mark.parametrize(
    ("original", "branch", "to_branch", "after"),
    [
        (BranchMark(_S.WRITER), BranchMark(_S.HALTED, 5), True, ("SHADOW", "WRITER")),
        (None, BranchMark(_S.HALTED, 5), True, ("SHADOW", "WRITER")),
        (BranchMark(_S.SHADOW, 5), BranchMark(_S.HALTED, 5), True, ("SHADOW", "WRITER")),
        (BranchMark(_S.HALTED, 5), BranchMark(_S.WRITER), False, ("WRITER", "SHADOW")),
        (BranchMark(_S.HALTED, 5), BranchMark(_S.WRITER), True, ("SHADOW", "WRITER")),
        (BranchMark(_S.WRITER), BranchMark(_S.HALTED, 5), False, ("WRITER", "SHADOW")),
        (BranchMark(_S.WRITER), BranchMark(_S.SHADOW), False, ("WRITER", "SHADOW")),
    ],
)
def test_an_interrupted_exchange_is_completed_or_undone(
    pair: Marked, original: BranchMark | None, branch: BranchMark, to_branch: bool, after: tuple[str, str]
) -> None:
    pair.set(original, branch)
    pair.exchange(to_branch)
    assert pair.states() == after


@BROKER
@pytest.mark.parametrize(
    ("original", "branch", "to_branch", "why", "after"),
    [
        (BranchMark(_S.HALTED, 5), BranchMark(_S.SHADOW, 5), True, "`penstock branch rollback", ("HALTED", "SHADOW")),
        (BranchMark(_S.SHADOW, 5), BranchMark(_S.HALTED, 5), False, "`penstock branch cutover", ("SHADOW", "HALTED")),
        (BranchMark(_S.SHADOW, 4), BranchMark(_S.HALTED, 5), True, "was replaced by another", ("SHADOW", "SHADOW")),
        (BranchMark(_S.SHADOW, 4), BranchMark(_S.SHADOW), True, "a third one does", ("SHADOW", "SHADOW")),
        (None, BranchMark(_S.UNFINISHED), True, "is marked as UNFINISHED", ("no mark", "UNFINISHED")),
    ],
)
def test_no_exchange_makes_a_second_writer(
    pair: Marked, original: BranchMark | None, branch: BranchMark, to_branch: bool, why: str, after: tuple[str, str]
) -> None:
    pair.set(original, branch)
    with pytest.raises(StreamsError, match=why):
        pair.exchange(to_branch)
    assert pair.states() == after


@BROKER
def test_applications_that_have_stopped_at_different_points_are_not_exchanged(pair: Marked) -> None:
    pair.set(None, BranchMark(_S.SHADOW))
    with ApplicationReset(pair.config) as group:
        group.move([Move(TopicPartition(pair.topic, 0), None, 7)])
    with pytest.raises(StreamsError, match=rf"at offset 0 of {pair.topic}-0, and {pair.topic} at 7"):
        pair.exchange(to_branch=True)
    assert pair.states() == ("no mark", "SHADOW")


@BROKER
def test_one_exchange_at_a_time(pair: Marked) -> None:
    pair.set(None, BranchMark(_S.SHADOW))
    with BranchRecords(pair.config).locked(), pytest.raises(LockError, match="exchanges branches of this application"):
        pair.exchange(to_branch=True)
    assert pair.states() == ("no mark", "SHADOW")


def test_the_file_of_a_branch_keeps_what_an_exchange_notes(tmp_path: Path) -> None:
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:1", "state.dir": str(tmp_path)})
    application_directory(config).mkdir()
    record = BranchRecord("next", "next.", 0, ("a",), {"app": ["in"], "next": ["in"]}, cut_ms=1)
    noted = replace(record, original_prefix="old-", writer_since_ms=5, points={"in": [3]})
    BranchRecords(config).save(noted)
    assert BranchRecords(config).get("next") == noted
    assert json.loads((application_directory(config) / "branches" / "next.json").read_text())["points"] == {"in": [3]}

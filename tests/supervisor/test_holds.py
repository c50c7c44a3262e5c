"""Holds, limits and stops reach the stream threads of all hosts, or fail as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.supervisor.queries.holds import AllHosts, Part, ThisHost
from penstock.supervisor.queries.queries import Answers, Question
from penstock.supervisor.queries.store_routing import QueryError
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import (
    CommandResult,
    EndHold,
    HeldTasks,
    HoldAtCommit,
    HostsChanged,
    LimitInput,
    TopologyTopics,
)
from penstock.workers.group.streams_metadata import HostInfo, StreamsMetadataState

TOPICS = TopologyTopics(("in",), (), ("app-counts-changelog",), ("out",), ())
OTHER = HostInfo("b", 2)


class Threads:
    """The part of a supervisor that holds use, with one stream thread, which holds until the hold ends."""

    def __init__(self, task: str, *addresses: str) -> None:
        self.queries = SimpleNamespace(metadata=StreamsMetadataState(next(iter(addresses), "")))
        nothing: frozenset[TopicPartition] = frozenset()
        self.queries.metadata.on_change(HostsChanged(dict.fromkeys(addresses, nothing), {}, {}, frozenset()))
        self.task = task
        self.topics = TOPICS
        self.refusal: str | None = None
        self.hold: int | None = None
        self.limits: dict[Any, int] = {}
        self.stopped = False

    def ask(self, question: Question, answers: Answers, _timeout: float) -> list[CommandResult]:
        command = question(1)
        match command:
            case HoldAtCommit():
                if self.refusal is None:
                    self.hold = command.hold
                    result = CommandResult(1, HeldTasks((self.task,), {0: self.topics}))
                else:
                    result = CommandResult(1, error=self.refusal)
            case EndHold():
                result = CommandResult(1, None if self.hold == command.hold else "a stream thread was replaced")
                self.hold = None
            case LimitInput():
                self.limits = dict(command.offsets)
                result = CommandResult(1)
            case _:
                raise AssertionError(command)
        answers.results.append(result)
        return answers.results

    def shut_down(self, leave_group: bool) -> None:
        self.stopped = leave_group


class Hosts:
    """The other host, whose answers are JSON. It can be cut off."""

    def __init__(self, there: Threads) -> None:
        self.there = ThisHost(there)  # type: ignore[arg-type]
        self.is_cut_off = False

    def carry_out(self, host: HostInfo, command: str, arguments: Mapping[str, Any], timeout: float) -> Part:
        assert (host, timeout > 0) == (OTHER, True)
        if self.is_cut_off:
            raise QueryError(503, "HOST_UNREACHABLE", "b:2 cannot be reached")
        part: Part = json.loads(json.dumps(getattr(self.there, command)(**arguments)))
        return part


class TwoHosts:
    def __init__(self) -> None:
        self.here, self.there = Threads("0_0", "a:1", "b:2"), Threads("0_1")
        self.network = Hosts(self.there)
        self.all = AllHosts(self.here, self.network)  # type: ignore[arg-type]


@pytest.fixture
def hosts() -> TwoHosts:
    return TwoHosts()


def test_all_hosts_hold_and_continue(hosts: TwoHosts) -> None:
    held = hosts.all.hold(2.0)
    assert held["tasks"] == ["0_0", "0_1"]
    assert held["topics"]["0"]["changelogs"] == ["app-counts-changelog"]
    assert hosts.here.hold == hosts.there.hold == held["hold"]
    assert hosts.all.end_hold(held["hold"]) == {"changed": None}
    assert hosts.here.hold is hosts.there.hold is None


def test_if_one_host_does_not_hold_none_does(hosts: TwoHosts) -> None:
    hosts.there.refusal = "The group rebalances"
    with pytest.raises(StreamsError, match="The group rebalances"):
        hosts.all.hold(2.0)
    assert hosts.here.hold is None
    hosts.there.refusal, hosts.network.is_cut_off = None, True
    with pytest.raises(StreamsError, match="b:2 cannot be reached"):
        hosts.all.hold(2.0)
    assert hosts.here.hold is None


def test_a_host_that_has_not_held_spoils_the_hold(hosts: TwoHosts) -> None:
    held = hosts.all.hold(2.0)
    hosts.there.hold = None  # as a thread that was replaced
    assert hosts.all.end_hold(held["hold"]) == {"changed": "a stream thread was replaced"}
    held = hosts.all.hold(2.0)
    hosts.network.is_cut_off = True
    assert hosts.all.end_hold(held["hold"]) == {"changed": "b:2 cannot be reached"}


def test_hosts_with_different_versions_of_the_topology_are_refused(hosts: TwoHosts) -> None:
    hosts.there.topics = TopologyTopics(("in", "more"), (), ("app-counts-changelog",), ("out",), ())
    with pytest.raises(StreamsError, match="The hosts run different versions of the topology"):
        hosts.all.hold(2.0)
    assert hosts.here.hold is hosts.there.hold is None


def test_limits_and_stops_reach_all_hosts(hosts: TwoHosts) -> None:
    hosts.all.limit_input({"in": [7, 9]}, 2.0)
    assert hosts.here.limits == hosts.there.limits == {("in", 0): 7, ("in", 1): 9}
    hosts.all.stop()
    assert hosts.here.stopped
    assert hosts.there.stopped


def test_without_an_address_only_this_host_is_asked() -> None:
    alone = Threads("0_0")
    assert AllHosts(alone).hold(2.0)["tasks"] == ["0_0"]  # type: ignore[arg-type]


def test_an_error_that_nothing_explains_is_not_hidden(hosts: TwoHosts) -> None:
    hosts.there.task = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        hosts.all.hold(2.0)

"""Hosts change their version of Penstock, or all of them their group.protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults, Stage, turn_until
from tests.chaos.hosts import ROOT, Host
from tests.chaos.process_faults import stop_cleanly
from tests.chaos.schedule import Action, Event
from tests.chaos.versions import processes_of
from tests.waiting import eventually

#: Seconds for the new processes to become members.
JOIN_SECONDS = 90.0
PROTOCOLS = ("classic", "streams")
#: States of a group without members.
EMPTY = ("", "empty", "dead")


class VersionFaults(Faults):
    """previous: the folder of the other version. turn: see BrokerFaults."""

    def __init__(
        self,
        stage: Stage,
        hosts: Sequence[Host],
        cluster: Cluster,
        group: str,
        previous: Path,
        turn: Callable[[], object],
    ) -> None:
        super().__init__(stage)
        self._hosts = hosts
        self._cluster = cluster
        self._group = group
        self._previous = previous
        self._turn = turn

    @property
    @override
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        return {Action.OTHER_VERSION: self._other_version, Action.OTHER_PROTOCOL: self._other_protocol}

    def _other_version(self, event: Event) -> str:
        host = self._hosts[event.host]
        self._stage.agenda.drop(host.name)
        stop_cleanly(self._stage, host)
        host.root = self._previous if host.root == ROOT else ROOT
        host.start()
        turn_until(lambda: processes_of(host, host.root) > 0, self._turn, JOIN_SECONDS)
        self._see(event, processes_of(host, host.root), "processes of it")
        return f"{host.name}, now {'the previous one' if host.root == self._previous else 'this one'}"

    def _other_protocol(self, event: Event) -> str:
        before = str(self._hosts[0].config["group.protocol"])
        wanted = PROTOCOLS[before == PROTOCOLS[0]]
        for host in self._hosts:
            self._stage.agenda.drop(host.name)
            stop_cleanly(self._stage, host)
        # Static members do not leave: they are gone when their sessions end.
        eventually(lambda: self._cluster.group_state(self._group) in EMPTY, lambda: f"{self._group} still has members")
        for host in self._hosts:
            host.config["group.protocol"] = wanted
            host.start()
        turn_until(lambda: self._cluster.group_type(self._group) == wanted, self._turn, JOIN_SECONDS)
        self._see(event, int(self._cluster.group_type(self._group) == wanted), "groups of the other type")
        return f"from {before} to {wanted}"

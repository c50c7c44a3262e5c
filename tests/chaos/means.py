"""The resources for a run's faults: a network, faulty machines, another version; or why one is not available here."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType

from penstock.dev.kafka_distribution import newest
from tests.chaos.broker_faults import BrokerFaults
from tests.chaos.checker import Reader
from tests.chaos.checkpoint_faults import CheckpointFaults
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults, Stage
from tests.chaos.hosts import Host
from tests.chaos.machine import Control, MemoryGroup
from tests.chaos.machine_faults import MachineFaults
from tests.chaos.network import Network
from tests.chaos.network_faults import NetworkFaults
from tests.chaos.process_faults import ProcessFaults
from tests.chaos.schedule import (
    BROKERS,
    CHECKPOINTS,
    FAMILIES,
    HOSTS,
    LEADERLESS,
    MACHINES,
    NETWORK,
    PROCESSES,
    UNCLEAN,
    VERSIONS,
    Action,
)
from tests.chaos.unclean import UncleanFaults
from tests.chaos.version_faults import VersionFaults
from tests.free_port import free_port

from . import machine, network, program, versions

#: As often as a task stores the ends of its changelogs.
CHECKPOINT_INTERVAL_MS = 1_000
#: The HTTP port of a host in a separate network namespace.
HOST_PORT = 8080
#: Why all replicas of a partition must not be away at the same time.
NO_LEADER = "Kafka drops markers of transactions in partitions without a leader"
#: The version of Penstock to which hosts change, and from which they change back.
PREVIOUS = "HEAD^"


def why_not(
    families: Iterable[str],
    brokers: int,
    previous: str = PREVIOUS,
    kafka: str | None = None,
    *,
    exact: bool = False,
    branches: bool = False,
) -> dict[Action, str]:
    """Return the kinds of faults of these families that are not available here, with reasons.

    kafka: the run's initial version, by default the newest. exact: whether the run is one with exactly-once. branches:
    whether branches are compared, which excuses nothing.
    """
    missing: dict[Action, str] = {}
    for name in families:
        actions = FAMILIES[name].actions
        if name == BROKERS and exact:
            missing |= dict.fromkeys(LEADERLESS, NO_LEADER)
        if name == PROCESSES and exact and brokers == 1:
            # A lone broker that stops cleanly commits transactions when its partitions have no leader any more.
            missing |= dict.fromkeys([Action.RESTART_BROKER, *([Action.KILL_BROKER] if branches else [])], NO_LEADER)
        if name in (BROKERS, UNCLEAN) and brokers < 3:
            missing |= dict.fromkeys(actions, "it takes three brokers")
        if name == NETWORK and (reason := network.why_not()):
            missing |= dict.fromkeys(actions, reason)
        elif name == NETWORK and brokers < 3:
            missing |= dict.fromkeys((Action.CUT_COORDINATOR, Action.CUT_LEADERS), "it takes three brokers")
        if name == MACHINES and machine.compiler() is None:
            missing |= dict.fromkeys(actions, "there is no C compiler")
        elif name == MACHINES and (reason := machine.why_no_memory_group()):
            missing[Action.SHORT_OF_MEMORY] = f"no control group can be made: {reason}"
        if name == VERSIONS and (reason := versions.why_not(previous)):
            missing[Action.OTHER_VERSION] = reason
        if name == VERSIONS and kafka not in (None, newest()):
            missing[Action.OTHER_PROTOCOL] = f"Kafka {kafka} has no streams groups"
    return missing


class Means:
    """As a context manager: the resources of these families; the calling thread is in the network if there is one.

    previous: the commit of the other version of Penstock. exact: whether the run is one with exactly-once.
    """

    def __init__(
        self,
        families: Collection[str],
        without: Collection[Action],
        brokers: int,
        previous: str,
        directory: Path,
        *,
        exact: bool = False,
    ) -> None:
        self._wanted = {action for name in families for action in FAMILIES[name].actions} - set(without)
        self._directory = directory
        self._previous = previous
        self._brokers = range(1, brokers + 1)
        self._keeps_leaders = exact and brokers > 1
        self._network: Network | None = None
        self._shim: Path | None = None
        self._other_version: Path | None = None
        self._controls: list[Control] = []
        self._groups: list[MemoryGroup] = []
        self._stack = ExitStack()

    def __enter__(self) -> Means:
        with ExitStack() as stack:
            if self._wants(NETWORK):
                self._network = stack.enter_context(Network(self._brokers, range(1, HOSTS + 1)))
            if self._wants(MACHINES):
                self._shim = machine.compile_shim(self._directory)
            if self._wants(VERSIONS):
                self._other_version = versions.check_out(self._previous, self._directory)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _wants(self, family: str) -> bool:
        return not self._wanted.isdisjoint(FAMILIES[family].actions)

    @property
    def broker_addresses(self) -> Mapping[int, str] | None:
        """Return the brokers' addresses in the run's network, None without one."""
        return None if self._network is None else self._network.brokers

    @property
    def bucket(self) -> Path:
        """The directory for checkpoints."""
        return self._directory / "bucket"

    def checkpointing(self) -> dict[str, object]:
        """Return the settings of hosts with checkpoints, none if no fault needs them."""
        if not self._wants(CHECKPOINTS):
            return {}
        return {
            "penstock.checkpoint.uri": f"file://{self.bucket}",
            "penstock.checkpoint.interval.ms": CHECKPOINT_INTERVAL_MS,
        }

    def reachable(self, number: int) -> dict[str, object]:
        """Return the settings of a host that the others can ask."""
        address, port = (
            ("127.0.0.1", free_port()) if self._network is None else (self._network.hosts[number], HOST_PORT)
        )
        return {
            "application.server": f"{address}:{port}",
            "penstock.http.host": address,
            "penstock.http.port": port,
            "penstock.http.token": program.HTTP_TOKEN,
        }

    def host(self, number: int, config: Mapping[str, object], environment: Mapping[str, str], topology: str) -> Host:
        """Return a host with its machine and network, as far as faults need them."""
        name, directory = f"host-{number}", self._directory / f"host-{number}"
        on = nullcontext if self._network is None else partial(self._network.on, number)
        born = None
        if self._shim is not None:
            self._controls.append(Control(self._shim, directory, directory / "state"))
            environment = {**environment, **self._controls[-1].environment}
        if Action.SHORT_OF_MEMORY in self._wanted:
            group = MemoryGroup(f"penstock-chaos-{os.getpid()}-{number}")
            self._stack.callback(group.close)
            self._groups.append(group)
            born = group.adopt
        return Host(name, self._directory, config, environment, topology, on=on, born=born)

    def faults(
        self, stage: Stage, hosts: Sequence[Host], cluster: Cluster, reader: Reader, turn: Callable[[], object]
    ) -> dict[Action, Faults]:
        """Return the object that carries out each kind. reader: see UncleanFaults; turn: see BrokerFaults."""
        group = program.APPLICATION_ID
        brokers = BrokerFaults(stage, cluster, turn, keeps_leaders=self._keeps_leaders)
        unclean = UncleanFaults(stage, cluster, brokers, reader)
        families: list[Faults] = [ProcessFaults(stage, hosts), brokers, unclean]
        if self._network is not None:
            families.append(NetworkFaults(stage, self._network, hosts, cluster, brokers, group))
        if self._shim is not None:
            families.append(MachineFaults(stage, hosts, self._controls, self._groups))
        if self._wants(CHECKPOINTS):
            families.append(CheckpointFaults(stage, hosts, self.bucket, turn))
        if self._other_version is not None:
            families.append(VersionFaults(stage, hosts, cluster, group, self._other_version, turn))
        return {action: faults for faults in families for action in faults.actions}

"""Faults of brokers and controllers: death, silence, restarts, upgrades, and moved leaders.

With exactly-once each partition keeps a leader; schedule.py says why.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from penstock.dev.kafka_distribution import newest
from tests.chaos import program
from tests.chaos.cluster import SETTLE_SECONDS, Cluster, Node, Partition
from tests.chaos.faults import Faults, Stage
from tests.chaos.process_faults import send
from tests.chaos.schedule import Action, Event

#: Timeout of a clean shutdown; the broker's leaders are moved first.
STOP_SECONDS = 60.0
#: The owner of the agenda's entries that restart nodes.
OWNER = "cluster"


class BrokerFaults(Faults):
    """turn: called during waits; does a step of the run's work between events.

    keeps_leaders: a broker goes down only if each broker has all partitions, in sync.
    """

    def __init__(
        self, stage: Stage, cluster: Cluster, turn: Callable[[], object], *, keeps_leaders: bool = False
    ) -> None:
        super().__init__(stage)
        self._cluster = cluster
        self._turn = turn
        self._keeps_leaders = keeps_leaders

    @property
    @override
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        absences = (Action.KILL_BROKER, Action.KILL_TWO_BROKERS, Action.KILL_ALL_BROKERS, Action.KILL_CONTROLLER)
        restarts = (Action.RESTART_BROKER, Action.RESTART_TWO_BROKERS, Action.RESTART_ALL_BROKERS)
        return {
            **dict.fromkeys((*absences, *restarts), self._absence),
            Action.STOP_BROKER: self._stop,
            Action.ROLL_CLUSTER: self._roll,
            Action.UPGRADE_CLUSTER: self._upgrade,
            Action.MOVE_LEADERS: self._move_leaders,
            Action.REASSIGN: self._reassign,
        }

    def _absence(self, event: Event) -> str:
        if event.action is not Action.KILL_CONTROLLER:
            self._await_replicas()
        victims = [node for node in self._victims(event) if node.status().running]
        cleanly = event.action in (Action.RESTART_BROKER, Action.RESTART_TWO_BROKERS, Action.RESTART_ALL_BROKERS)
        for node in victims:
            if cleanly:
                send(node.process(), signal.SIGCONT)  # a stopped process cannot stop cleanly
                node.stop(STOP_SECONDS)
            else:
                node.kill()
        self._see(event, len(victims), "clean ends" if cleanly else "processes killed")
        self._heal_later(event, lambda: self._cluster.start(victims), OWNER)
        return f"{_names(victims)}, back in {event.duration_ms} ms"

    def _victims(self, event: Event) -> Sequence[Node]:
        if event.action is Action.KILL_CONTROLLER:
            return [self._cluster.active_controller()]
        brokers = list(self._cluster.brokers.values())
        numbers = {
            Action.KILL_TWO_BROKERS: 2,
            Action.RESTART_TWO_BROKERS: 2,
            Action.KILL_ALL_BROKERS: len(brokers),
            Action.RESTART_ALL_BROKERS: len(brokers),
        }
        begin = int(event.victim * len(brokers))
        return (brokers[begin:] + brokers[:begin])[: numbers.get(event.action, 1)]

    def _stop(self, event: Event) -> str:
        self._await_replicas()
        (node,) = self._victims(event)
        if not node.status().running:
            return f"{node.name} is away"
        process = node.process()
        self._see(event, send(process, signal.SIGSTOP), "processes stopped")
        self._heal_later(event, lambda: send(process, signal.SIGCONT), OWNER)
        return f"{node.name}, for {event.duration_ms} ms"

    def _await_replicas(self) -> None:
        if self._keeps_leaders:
            self.wait_until(
                lambda: not self._stage.agenda.expects(OWNER) and self._cluster.is_whole(), "replicas are missing"
            )

    # -- one after the other

    def _roll(self, event: Event) -> str:
        self._each(event, lambda _node: None)
        return _names(list(self._cluster.nodes.values()))

    def _upgrade(self, event: Event) -> str:
        before = self._cluster.kafka
        self._each(event, lambda node: node.use(newest()))
        versions = {node.running_version() for node in self._cluster.nodes.values()}
        raised = self._cluster.finalize()
        features = ", ".join(f"{name} {low} to {high}" for name, (low, high) in raised.items())
        return f"from {before} to {', '.join(versions)}; {features}"

    def _each(self, event: Event, prepare: Callable[[Node], None]) -> None:
        """Restart each node cleanly once the one before is in sync again."""
        for node in self._cluster.nodes.values():
            self.await_settled()
            node.stop(STOP_SECONDS)
            prepare(node)
            self._cluster.start([node])
            self._see(event, 1, "clean restarts")
        self.await_settled()

    def await_settled(self) -> None:
        """Let the run continue until all nodes are up and in sync; raises TimeoutError."""
        agenda, cluster = self._stage.agenda, self._cluster
        self.wait_until(lambda: not agenda.expects(OWNER) and cluster.settled(), "the cluster is not whole again")

    def wait_until(self, reached: Callable[[], bool], otherwise: str) -> None:
        """Let the run continue until the condition holds; raises TimeoutError. otherwise:
        the beginning of its message.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{otherwise} within {SETTLE_SECONDS:.0f} s")
            self._turn()

    # -- leaders and replicas

    def lead_elsewhere(self, broker: int) -> None:
        """Move all leaders of topics that are not internal away from a broker."""
        self.await_settled()
        own = {p: nodes for p, nodes in self._replicas().items() if not p[0].startswith("__")}
        self._lead({p: sorted(nodes, key=lambda node: node == broker) for p, nodes in own.items()})

    def _replicas(self) -> dict[Partition, list[int]]:
        """Return the replicas of each partition, without those of branches: these may be deleted at any time."""
        return {p: nodes for p, nodes in self._cluster.replicas().items() if not p[0].startswith(program.BRANCHES)}

    def _lead(self, replicas: Mapping[Partition, list[int]]) -> None:
        """Set the partitions' preferred leaders and elect them, until brokers have them; raises TimeoutError."""
        self._cluster.reassign(replicas)
        self._cluster.elect_preferred(replicas)
        wanted = {partition: nodes[0] for partition, nodes in replicas.items()}
        self.wait_until(lambda: wanted.items() <= self._cluster.leaders().items(), "preferred leaders do not lead")

    def _move_leaders(self, event: Event) -> str:
        self.await_settled()
        rng, replicas, leaders = random.Random(event.seed), self._replicas(), self._cluster.leaders()
        before = {partition: leaders[partition] for partition in replicas}
        self._lead({partition: rng.sample(nodes, len(nodes)) for partition, nodes in replicas.items()})
        after = self._cluster.leaders()
        moved = sum(after[partition] != leader for partition, leader in before.items())
        self._see(event, moved, "leaders moved")
        return f"{moved} of {len(before)}"

    def _reassign(self, event: Event) -> str:
        self.await_settled()
        rng, replicas = random.Random(event.seed), self._replicas()
        some = {p: _all_but_one(replicas[p], rng) for p in rng.sample(sorted(replicas), (len(replicas) + 1) // 2)}
        self._cluster.reassign(some)
        # Brokers receive the controller's changes a moment later.
        self.wait_until(lambda: some.items() <= self._cluster.replicas().items(), "brokers do not know new replicas")
        self._see(event, len(some), "replicas taken away")

        def give_back() -> None:
            self.await_settled()
            self._cluster.reassign({partition: replicas[partition] for partition in some})

        self._heal_later(event, give_back)
        return f"a replica of {len(some)} of {len(replicas)} partitions, back in {event.duration_ms} ms"


def _all_but_one(nodes: list[int], rng: random.Random) -> list[int]:
    gone = rng.choice(nodes)
    return [node for node in nodes if node != gone]


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes) or "nobody there"

"""Faults of the network between a host and the brokers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from tests.chaos.broker_faults import BrokerFaults
from tests.chaos.cluster import Cluster, Node
from tests.chaos.faults import Faults, Stage
from tests.chaos.hosts import Host
from tests.chaos.network import Network
from tests.chaos.schedule import Action, Event
from tests.chaos.switch import Rule

#: One way, in ms.
DELAY_MS, JITTER_MS = 200.0, 100.0
#: Packet loss one way: all packets, or so few that TCP still works, but slowly.
LOSSES = (1.0, 0.3)
#: The owner of the agenda's entries that restore the network.
OWNER = "network"
#: /proc/net/tcp's state of an established connection.
ESTABLISHED = "01"


class NetworkFaults(Faults):
    """Only one fault of the network lasts at a time: a new one ends the previous one."""

    def __init__(
        self, stage: Stage, network: Network, hosts: Sequence[Host], cluster: Cluster, brokers: BrokerFaults, group: str
    ) -> None:
        super().__init__(stage)
        self._network = network
        self._hosts = hosts
        self._cluster = cluster
        self._brokers = brokers
        self._group = group

    @property
    @override
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        return {
            Action.CUT_COORDINATOR: self._cut_some,
            Action.CUT_LEADERS: self._cut_some,
            Action.CUT_HOST: self._cut_host,
            Action.LOSE_REQUESTS: self._lose,
            Action.LOSE_ANSWERS: self._lose,
            Action.SLOW_NETWORK: self._slow,
            Action.HALF_OPEN: self._half_open,
        }

    def _cut_some(self, event: Event) -> str:
        coordinator = self._cluster.coordinator(self._group)
        self._brokers.lead_elsewhere(coordinator)
        others = [broker for broker in self._network.brokers if broker != coordinator]
        cut = [coordinator] if event.action is Action.CUT_COORDINATOR else others
        self._rule(event, self._both_ways(event, cut, loss=1.0), "lost")
        return f"{self._name(event)}; the coordinator is broker {coordinator}"

    def _cut_host(self, event: Event) -> str:
        self._rule(event, self._both_ways(event, self._network.brokers, loss=1.0), "lost")
        return self._name(event)

    def _lose(self, event: Event) -> str:
        loss, host = random.Random(event.seed).choice(LOSSES), self._address(event)
        brokers = self._network.brokers.values()
        if event.action is Action.LOSE_REQUESTS:
            rules = [Rule(host, broker, loss=loss) for broker in brokers]
        else:
            rules = [Rule(broker, host, loss=loss) for broker in brokers]
        self._rule(event, rules, "lost")
        return f"{self._name(event)}, {loss:.0%} of packets"

    def _slow(self, event: Event) -> str:
        rules = self._both_ways(event, self._network.brokers, slow=True)
        self._rule(event, rules, "delayed")
        return f"{self._name(event)}, {DELAY_MS:.0f} ± {JITTER_MS:.0f} ms each way"

    def _half_open(self, event: Event) -> str:
        """Cut a host off from a broker, replace the broker's process, and let the host find its connections dead."""
        brokers = list(self._cluster.brokers.values())
        node = brokers[int(event.victim * len(brokers))]
        self._heal_now(OWNER)
        self._brokers.await_settled()
        host = self._hosts[event.host]
        self._network.rule(self._both_ways(event, [node.node_id], loss=1.0))
        before = _established(host, node)
        node.kill()
        self._cluster.start([node])
        still = before & _established(host, node)
        self._see(event, len(still), "half-open connections")
        self._network.rule([])
        return f"{node.name} is another process; {host.name} still has {len(still)} connections to the one before"

    def _rule(self, event: Event, rules: list[Rule], effect: str) -> None:
        self._heal_now(OWNER)
        self._network.rule(rules)

        def heal() -> None:
            self._see(event, self._network.rule([]).get(effect, 0), f"packets {effect}")

        self._heal_later(event, heal, OWNER)

    def _both_ways(self, event: Event, brokers: Iterable[int], loss: float = 0.0, slow: bool = False) -> list[Rule]:
        pairs = [(self._address(event), self._network.brokers[broker]) for broker in brokers]
        delays = (DELAY_MS, JITTER_MS) if slow else (0.0, 0.0)
        return [Rule(*addresses, loss, *delays) for there in pairs for addresses in (there, there[::-1])]

    def _address(self, event: Event) -> str:
        return list(self._network.hosts.values())[event.host]

    def _name(self, event: Event) -> str:
        return f"{self._hosts[event.host].name}, for {event.duration_ms} ms"


def _established(host: Host, node: Node) -> set[str]:
    """Return the local addresses of a host's connections to a broker, from its kernel."""
    address, _, port = node.bootstrap_servers.rpartition(":")
    remote = "".join(f"{int(part):02X}" for part in reversed(address.split("."))) + f":{int(port):04X}"
    found = set()
    for pid in host.pids()[:1]:  # all of them are in one namespace
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            _, mine, other, state, *_ = line.split()
            if other == remote and state == ESTABLISHED:
                found.add(mine)
    return found

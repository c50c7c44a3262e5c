"""Forwards packets between hosts and brokers, and drops or delays them by rules; a separate process.

``python -m tests.chaos.switch FD…`` with the descriptors of TUN devices, the brokers' first. It reads one JSON object
per line from standard input, ``{"rules": [rule, …]}`` or ``{}``, and responds to each with its work since the last one.
Linux's own tools for this (netem, nftables) are not in every kernel, and need programs that few machines have.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import selectors
import socket
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass

#: The largest packet of a device: more than its MTU.
PACKET_BYTES = 65_536
#: Packets of one device before the next device is served.
BURST = 64
#: The position of the addresses in an IPv4 header.
SOURCE, DESTINATION = slice(12, 16), slice(16, 20)


@dataclass(frozen=True, slots=True)
class Rule:
    """The treatment of packets from one address to another. loss: the share that is lost; delays in ms."""

    source: str
    destination: str
    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0


class Switch:
    """Moves packets by their destination. tuns: descriptors; the first one is for all addresses without a rule."""

    def __init__(self, tuns: list[int], rng: random.Random) -> None:
        self._tuns = tuns
        self._rng = rng
        self._rules: dict[tuple[bytes, bytes], Rule] = {}
        self._homes: dict[bytes, int] = {}
        self._delayed: list[tuple[float, int, bytes]] = []
        self._count: Counter[str] = Counter()
        self._order = 0

    def command(self, line: str) -> str:
        """Replace all rules by new ones, and return the work since the last call."""
        found = json.loads(line)
        if "rules" in found:
            rules = [Rule(**rule) for rule in found["rules"]]
            self._rules = {(socket.inet_aton(r.source), socket.inet_aton(r.destination)): r for r in rules}
        counts, self._count = self._count, Counter()
        return json.dumps(counts)

    def take(self, tun: int) -> None:
        """Move the packets that have arrived through one device."""
        for _ in range(BURST):
            try:
                packet = os.read(tun, PACKET_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4:  # the kernel looks for IPv6 neighbours, which there are none of
                self._homes[packet[SOURCE]] = tun
                self._move(packet)

    def _move(self, packet: bytes) -> None:
        rule = self._rules.get((packet[SOURCE], packet[DESTINATION]))
        if rule is None:
            self._deliver(packet)
        elif rule.loss and self._rng.random() < rule.loss:
            self._count["lost"] += 1
        elif rule.delay_ms:
            self._count["delayed"] += 1
            delay = rule.delay_ms + self._rng.uniform(-rule.jitter_ms, rule.jitter_ms)
            self._order += 1
            heapq.heappush(self._delayed, (time.monotonic() + max(delay, 0.0) / 1000, self._order, packet))
        else:
            self._deliver(packet)

    def _deliver(self, packet: bytes) -> None:
        self._count["passed"] += 1
        try:
            os.write(self._homes.get(packet[DESTINATION], self._tuns[0]), packet)
        except (BlockingIOError, OSError):
            self._count["refused"] += 1  # a full queue: TCP sends it again

    def deliver_due(self) -> float | None:
        """Deliver packets whose delay is over; return the seconds until the next one, None if there is none."""
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            self._deliver(heapq.heappop(self._delayed)[2])
        return self._delayed[0][0] - now if self._delayed else None


def main() -> None:
    """Work until the standard input ends."""
    tuns = [int(argument) for argument in sys.argv[1:]]
    switch = Switch(tuns, random.Random(1))
    with selectors.DefaultSelector() as selector:
        for tun in tuns:
            os.set_blocking(tun, False)
            selector.register(tun, selectors.EVENT_READ, "packets")
        selector.register(sys.stdin, selectors.EVENT_READ, "commands")
        while True:
            for key, _ in selector.select(switch.deliver_due()):
                if key.data == "packets":
                    switch.take(key.fd)
                elif line := sys.stdin.readline():
                    print(switch.command(line), flush=True)
                else:
                    return


def encode(rules: list[Rule]) -> str:
    """Return the command for these rules."""
    return json.dumps({"rules": [asdict(rule) for rule in rules]})


if __name__ == "__main__":
    main()

"""Faults of the machine of a host: its clock, its disk, its memory."""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from tests.chaos.faults import Faults, Stage
from tests.chaos.hosts import Host
from tests.chaos.machine import Control, Field, MemoryGroup
from tests.chaos.process_faults import send
from tests.chaos.schedule import Action, Event

#: Offsets of a clock from the brokers' clocks, in ms: up to ten minutes.
CLOCK_MS = (60_000, 600_000)
#: Number of jumps of a clock until it is right again.
JUMPS = 4
#: Delay of each write to a slow disk, in µs.
WRITE_DELAY_US = 20_000


class MachineFaults(Faults):
    """Only one fault of a machine lasts at a time: a new one ends the previous one.

    controls, groups: one for each host; groups may be empty if they are not available.
    """

    def __init__(
        self, stage: Stage, hosts: Sequence[Host], controls: Sequence[Control], groups: Sequence[MemoryGroup]
    ) -> None:
        super().__init__(stage)
        self._hosts = hosts
        self._controls = controls
        self._groups = groups

    @property
    @override
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        memory = {Action.SHORT_OF_MEMORY: self._short_of_memory} if self._groups else {}
        return {
            Action.CLOCK_APART: self._clock_apart,
            Action.CLOCK_JUMPS: self._clock_jumps,
            Action.SLOW_DISK: self._slow_disk,
            Action.FULL_DISK: self._fail_writes,
            Action.BROKEN_DISK: self._fail_writes,
            **memory,
        }

    def _clock_apart(self, event: Event) -> str:
        offset = _offset_ms(random.Random(event.seed))
        self._change(event, Field.CLOCK_OFFSET_MS, offset, Field.CLOCK_READINGS, "wrong readings")
        return f"{self._name(event)}, {offset / 1000:+.0f} s"

    def _clock_jumps(self, event: Event) -> str:
        rng = random.Random(event.seed)
        offsets = [_offset_ms(rng) for _ in range(JUMPS)]
        control = self._controls[event.host]
        self._change(event, Field.CLOCK_OFFSET_MS, offsets[0], Field.CLOCK_READINGS, "wrong readings")
        for number, offset in enumerate(offsets[1:], start=1):

            def jump(offset: int = offset) -> None:
                control[Field.CLOCK_OFFSET_MS] = offset

            self._stage.agenda.add(event.duration_ms * number / JUMPS, jump, self._owner(event))
        return f"{self._name(event)}, {', '.join(f'{offset / 1000:+.0f} s' for offset in offsets)}"

    def _slow_disk(self, event: Event) -> str:
        self._change(event, Field.DISK_DELAY_US, WRITE_DELAY_US, Field.DISK_DELAYS, "slow writes")
        return f"{self._name(event)}, {WRITE_DELAY_US / 1000:.0f} ms for each write"

    def _fail_writes(self, event: Event) -> str:
        number = errno.ENOSPC if event.action is Action.FULL_DISK else errno.EIO
        self._change(event, Field.DISK_ERRNO, number, Field.DISK_FAILURES, "failed writes")
        return f"{self._name(event)}, {errno.errorcode[number]}"

    def _short_of_memory(self, event: Event) -> str:
        self._heal_now(self._owner(event))
        group, host = self._groups[event.host], self._hosts[event.host]
        hits, kills = group.hits(), group.kills()
        host.troubled = True
        limit = group.squeeze()

        def heal() -> None:
            self._see(event, group.hits() - hits, "times at the limit")
            if killed := group.kills() - kills:
                self._stage.say(f"{'':11} {host.name}: processes killed for their memory: {killed}")
            group.free()
            self._end_trouble(host)

        self._heal_later(event, heal, self._owner(event), lambda: group.hits() > hits)
        return f"{self._name(event)}, {limit >> 20} MiB for all of its processes"

    def _change(self, event: Event, field: Field, value: int, proof: Field, unit: str) -> None:
        """Set a field for the duration of the event.

        A store writes little between the start and the end of its process, so a bad disk comes with a new process.
        """
        self._heal_now(self._owner(event))
        control, host = self._controls[event.host], self._hosts[event.host]
        before = control[proof]
        host.troubled = field is Field.DISK_ERRNO
        control[field] = value
        victim = host.victim(event.victim)
        if victim is not None and field is not Field.CLOCK_OFFSET_MS:
            send(victim[0], signal.SIGKILL)

        def heal() -> None:
            control[field] = 0
            self._see(event, control[proof] - before, unit)
            self._end_trouble(host)

        self._heal_later(event, heal, self._owner(event), lambda: control[proof] > before)

    def _owner(self, event: Event) -> str:
        """Return the owner of the agenda's entries that repair this machine."""
        return f"{self._hosts[event.host].name}'s machine"

    def _end_trouble(self, host: Host) -> None:
        """End a fault; the host may still die of it later."""
        if host.troubled:
            host.troubled, host.excused = False, True

    def _name(self, event: Event) -> str:
        return f"{self._hosts[event.host].name}, for {event.duration_ms} ms"


def _offset_ms(rng: random.Random) -> int:
    return rng.choice((-1, 1)) * rng.randint(*CLOCK_MS)

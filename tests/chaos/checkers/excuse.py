"""The violations for which a broker that drops transaction markers is responsible, and no others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

#: A record of the feeder: key and number.
Number = tuple[str, int]


@dataclass(frozen=True)
class Stall:
    """Outputs that may stop while a partition is blocked, by name; none: all. since, until: ms since the epoch.

    until: None if it is still blocked at the end.
    """

    outputs: Collection[str]
    since: int
    until: int | None


@dataclass
class Excuse:
    """Consequences of dropped markers. Numbers may be lost or duplicated, tallies of keys and groups may be wrong.

    keys, groups: the time in ms since the epoch from which that holds. markers: the number of missing ones by name of
    their transaction.
    """

    numbers: set[Number] = field(default_factory=set)
    keys: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)
    markers: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.markers)

    def __str__(self) -> str:
        return (
            f"excused: {len(self.markers)} transactions of which brokers dropped {sum(self.markers.values())} markers, "
            f"with {len(self.numbers)} records, tallies of {len(self.keys)} keys and {len(self.groups)} groups"
        )

    def add(self, since: int, keys: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Excuse tallies from a time on."""
        for table, names in ((self.keys, keys), (self.groups, groups)):
            for name in names:
                table[name] = min(since, table.get(name, since))

    def without(self, table: Mapping[str, object], excused: Mapping[str, int], at: int) -> dict[str, object]:
        """Return the table without the tallies that are excused at this time."""
        return {name: tally for name, tally in table.items() if not excused.get(name, at) < at}

    def stalls_all(self, outputs: Collection[str], since: int, until: int) -> bool:
        """Return True if all of these outputs may have stopped between two times."""
        during = [s for s in self.stalls if s.since <= until and (s.until is None or since <= s.until)]
        stopped = {output for stall in during for output in stall.outputs}
        return stopped.issuperset(outputs) or any(not stall.outputs for stall in during)

"""The findings of a checker."""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum number of faults that a report prints.
SHOWN = 5


@dataclass(frozen=True)
class Report:
    """name: of the checker. examined: a description of the checked data. faults: one line for each.

    A checker that has examined nothing proves nothing, so that is a fault too: ``of`` adds it.
    """

    name: str
    examined: str
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, count: int, what: str, faults: list[str]) -> Report:
        """Return a report about this many items of a kind; zero items are a fault."""
        if not count:
            faults = [*faults, f"{name}: there were no {what}, so nothing is proved"]
        return cls(name, f"{count} {what}", tuple(faults))

    @property
    def good(self) -> bool:
        """True if there are no faults."""
        return not self.faults

    def lines(self) -> list[str]:
        """Return the printed lines: one with figures, and the first faults."""
        more = len(self.faults) - SHOWN
        rest = [f"  and {more} more"] if more > 0 else []
        first = [f"  {fault}" for fault in self.faults[:SHOWN]]
        return [f"{self.name}: {self.examined}, {len(self.faults)} faults", *first, *rest]

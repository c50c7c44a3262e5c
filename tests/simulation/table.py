"""How often rare things happened in many schedules: fault points, events, and rare branches of the code.

Anything that no schedule has reached is a gap, which must be closed or have a reason in GAPS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from tests.simulation.gaps import GAPS
from tests.simulation.rare import Branch
from tests.simulation.simulation import AIMS, OWN_AIMS

HITS = tuple(
    f"{hit} {when} {kind}"
    for kind, hit, when in product(dict.fromkeys((*AIMS, *OWN_AIMS)), ("kill", "stop", "slow"), ("before", "after"))
)
EVENTS = (
    "a process is killed", "a thread is added", "a thread is removed", "a state directory is deleted",
    "files are corrupted", "a changelog is compacted", "a wall clock is set", "all machines sleep",
    "a request is lost", "an answer is lost", "the end of a partition is left unanswered", "a send fails",
    "a session expires", "a transaction times out", "a producer is fenced",
    "all brokers are away", "a request meets brokers that are away", "ends are asked for while brokers are away",
    "topics are asked for while brokers are away",
    "a changelog loses its beginning", "a write to the disk fails", "a restore meets damage",
    "a request comes late: produce", "a request comes late: ask TxnOffsetCommit", "a request comes late: ask EndTxn",
    "a broker cannot write a batch now", "a record is given up",
    "offsets of a former member are refused in a transaction", "committed offsets are not decided yet",
)  # fmt: skip


@dataclass
class Rare:
    """Rare things in many schedules: in how many schedules each happened, and how often in total."""

    count: int = 0
    schedules: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, happened: Mapping[str, int]) -> None:
        """Add one schedule."""
        self.count += 1
        self.schedules.update(happened.keys())
        self.times.update(happened)

    def merge(self, other: Rare) -> None:
        """Add the schedules of another one."""
        self.count += other.count
        self.schedules += other.schedules
        self.times += other.times


def gaps(rare: Rare, branches: Iterable[Branch]) -> list[str]:
    """Return the gaps without a reason."""
    wanted = [*HITS, *EVENTS, *(str(branch) for branch in branches)]
    return [what for what in wanted if not rare.times[what] and reason(what) is None]


def reason(what: str) -> str | None:
    """Return the reason for which something cannot be reached, None if it should be."""
    return next((why for why, names in GAPS.items() for name in names if what.startswith(name)), None)


def lines(rare: Rare, branches: Sequence[Branch]) -> Iterator[str]:
    """Yield the table."""
    yield f"reached in how many of {rare.count} schedules, and how often in all"
    sections: list[tuple[str, Iterable[str]]] = [("events", EVENTS), ("processes are hit", HITS)]
    modules = dict.fromkeys(branch.module for branch in branches)
    sections += [
        (f"workers/{module.replace('.', '/')}.py", [str(b) for b in branches if b.module == module])
        for module in modules
    ]
    for title, names in sections:
        yield f"{title}:"
        yield from (_line(rare, name) for name in names)
    missing = gaps(rare, branches)
    named = sum(not rare.times[str(branch)] and reason(str(branch)) is not None for branch in branches)
    yield f"{len(missing)} gaps, {named} branches that have a reason not to be reached here"


def _line(rare: Rare, name: str) -> str:
    if rare.times[name]:
        return f"{rare.schedules[name]:9} {rare.times[name]:9}  {name}"
    why = reason(name)
    return f"{'-':>9} {'GAP' if why is None else '-':>9}  {name}" + (f"  ({why})" if why else "")

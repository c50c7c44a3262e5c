"""The resource usage of processes, sampled while they run, and its evaluation: within the budget, and no growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

MIB = 1 << 20
#: The warm-up's share of a run, in percent: caches, memtables and the Python heap are still filling.
WARM_UP_PERCENT = 60
#: With fewer samples after the warm-up, growth cannot be judged.
SAMPLES_MIN = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment. at: seconds since the start of the run; handles: open files, sockets and pipes.

    disk: bytes in the tables of all stores, which the supervisor's sample has.
    """

    process: str
    pid: int
    at: float
    rss: int
    handles: int
    threads: int
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowed growth from the warm-up to the end: in percent, with an absolute minimum."""

    field: str
    percent: int
    least: int


#: RSS: memtables fill and are flushed, and glibc releases memory late. Handles: RocksDB's files change with
#: compactions, and clients open new connections. Threads: librdkafka has one for each broker that it uses. Disk: tables
#: are merged late, and their number goes up and down.
ALLOWANCES = (
    Allowance("rss", 5, 6 * MIB),
    Allowance("handles", 10, 8),
    Allowance("threads", 0, 2),
    Allowance("disk", 10, MIB),
)
_IN_MIB = {"rss": "RSS MiB", "disk": "disk MiB"}


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of a figure of one process after the warm-up. growth: from start to end, by the median slope."""

    process: str
    field: str
    typical: float
    highest: float
    growth: float
    per_hour: float


def trend(samples: Sequence[Sample], field: str) -> Trend:
    """Return the trend of one process's samples; the slope is the median of all pairs (Theil-Sen).

    Raises ValueError for fewer than SAMPLES_MIN.
    """
    if len(samples) < SAMPLES_MIN:
        raise ValueError(f"{len(samples)} samples after the warm-up: {SAMPLES_MIN} are needed for a trend")
    points = [(sample.at, float(getattr(sample, field))) for sample in samples]
    slope = median((v2 - v1) / (t2 - t1) for (t1, v1), (t2, v2) in combinations(points, 2))
    values = [value for _, value in points]
    seconds = points[-1][0] - points[0][0]
    return Trend(samples[0].process, field, median(values), max(values), slope * seconds, slope * 3600)


def settled(samples: Sequence[Sample], seconds: float) -> dict[str, list[Sample]]:
    """Return the samples after the warm-up of a run of this many seconds, by process."""
    begin = seconds * WARM_UP_PERCENT / 100
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.at >= begin:
            found.setdefault(sample.process, []).append(sample)
    return found


def faults(samples: Sequence[Sample], seconds: float, shares: dict[str, int]) -> Iterator[str]:
    """Yield violations. shares: the allowed bytes by process name; other processes have no limit."""
    for process, mine in settled(samples, seconds).items():
        if len({sample.pid for sample in samples if sample.process == process}) > 1:
            yield f"{process} was replaced"
        for allowance in ALLOWANCES:
            found = trend(mine, allowance.field)
            allowed = max(allowance.least, found.typical * allowance.percent / 100)
            if found.growth > allowed:
                yield f"{process}: {allowance.field} grew by {found.growth:.0f}, allowed are {allowed:.0f}"
    for process, share in shares.items():
        highest = max((sample.rss for sample in samples if sample.process == process), default=0)
        if highest > share:
            yield f"{process} took {highest // MIB} MiB, its share is {share // MIB} MiB"


def table(samples: Sequence[Sample], seconds: float) -> Iterator[str]:
    """Yield lines with all trends."""
    yield f"{'process':24} {'':8} {'median':>10} {'highest':>10} {'growth':>10} {'per hour':>10}"
    for mine in settled(samples, seconds).values():
        for allowance in ALLOWANCES:
            found = trend(mine, allowance.field)
            if found.highest == 0:
                continue  # only the supervisor's samples have a size on disk
            unit = MIB if allowance.field in _IN_MIB else 1
            figures = (found.typical, found.highest, found.growth, found.per_hour)
            name = _IN_MIB.get(allowance.field, allowance.field)
            yield f"{found.process:24} {name:8} " + " ".join(f"{figure / unit:10.1f}" for figure in figures)

"""The owner of a checkpoint's state, and the start of its queries, stored in a file in the checkpoint.

Without the file the checkpoint is Spark's own from the first record. A handover to Spark begins a new *generation*:
queries and state in a separate folder. So the previous one is unchanged until the file is replaced, which is atomic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from .checkpoint import CheckpointError

OWNERSHIP_FILE = "penstock-handover.json"
#: BACKFILL: a `penstock backfill` is unfinished; only it may continue.
LOCAL, SPARK, BACKFILL = "local", "spark", "backfill"
#: What the names of history files begin with, see HistoryFiles.
PARQUET_FILES, JSON_FILES = "parquet:", "json:"
#: Offsets by topic and partition: the next record to read.
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Ownership:
    """engine: the owner of the application, LOCAL, SPARK or BACKFILL.

    offsets: the start offsets of this generation's queries. seeded: the numbers of the sub-topologies that start with
    state. ends: the end offsets of a backfill; topics without one are read to their end. mark: the number of the
    handover, committed by the group while Spark owns the state; 0: there was none. files: the files that a
    backfill reads instead of the topics in in_files, see HistoryFiles; "": none.
    """

    engine: str = SPARK
    generation: int = 0
    offsets: Offsets = field(default_factory=dict)
    seeded: tuple[int, ...] = ()
    ends: Offsets = field(default_factory=dict)
    mark: int = 0
    files: str = ""
    in_files: tuple[str, ...] = ()

    def directory(self, checkpoint: str) -> str:
        """Return the folder of this generation."""
        return checkpoint if self.generation == 0 else f"{checkpoint}/handover-{self.generation}"

    def query_directory(self, checkpoint: str, subtopology: int) -> str:
        """Return the folder of a sub-topology's query: Spark's checkpointLocation."""
        return f"{self.directory(checkpoint)}/subtopology-{subtopology}"

    def seed_directory(self, checkpoint: str, subtopology: int) -> str:
        """Return the path of the rows of a query's initial state."""
        return f"{self.directory(checkpoint)}/seed-{subtopology}"

    def starting_offsets(self, text: str) -> str:
        """Return startingOffsets of Spark's source, including the offsets that were handed over."""
        starts = orjson.loads(text)
        for topic, partitions in starts.items():
            partitions.update({str(number): at for number, at in self.offsets.get(topic, {}).items()})
        return orjson.dumps(starts).decode()

    def from_files(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that are read from files."""
        return [topic for topic in topics if topic in self.in_files]

    def wanted(self) -> str:
        """Return the SQL condition of the records before the ends; of files also from the offsets on."""
        limits = [("offset >=", self.ends), *([("offset <", self.offsets)] if self.files else [])]
        beyond = [
            f"(topic = '{topic}' AND partition = {partition} AND {condition} {limit})"
            for condition, offsets in limits
            for topic, partitions in offsets.items()
            for partition, limit in partitions.items()
        ]
        return f"NOT ({' OR '.join(beyond)})" if beyond else "true"

    def packed(self) -> bytes:
        """Return the content of the file."""
        return orjson.dumps(self, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def unpack_ownership(data: bytes | None, checkpoint: str) -> Ownership:
    """Return the ownership from a checkpoint's file; None: there is no file. Raises CheckpointError if damaged."""
    if data is None:
        return Ownership()
    try:
        content: Any = orjson.loads(data)
        offsets, ends = _numbered(content["offsets"]), _numbered(content["ends"])
        generation, mark = int(content["generation"]), int(content["mark"])
        seeded, files, in_files = tuple(content["seeded"]), str(content["files"]), tuple(content["in_files"])
        return Ownership(content["engine"], generation, offsets, seeded, ends, mark, files, in_files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{checkpoint}/{OWNERSHIP_FILE} cannot be read: {error!r}. It names the engine of the "
            "application; restore it from a copy of the checkpoint."
        ) from None


def _numbered(content: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(number): int(at) for number, at in found.items()} for topic, found in content.items()}


def require_engine(owner: Ownership, engine: str, checkpoint: str) -> None:
    """Raise CheckpointError unless this engine owns a checkpoint's state."""
    if owner.engine == engine:
        return
    if owner.engine == LOCAL:
        raise CheckpointError(
            f"The state in the checkpoint {checkpoint} was handed over to the local engine, which continued from it. "
            "`penstock handover --to spark` brings it back; another --checkpoint starts from the beginning."
        )
    if owner.engine == BACKFILL:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is that of an unfinished backfill: run `penstock backfill` again."
        )
    raise CheckpointError(
        f"The checkpoint {checkpoint} has a state already that is Spark's: a backfill needs an empty --checkpoint."
    )

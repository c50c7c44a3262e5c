"""Builds an application's state from history on Spark, and hands it over to the local engine. See docs/spark.md."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.supervisor.offline.application_reset import Move, Target
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..checkpoint.ownership import BACKFILL, Ownership, require_engine
from ..session.spark_topics import make_topics_ready
from .engine_mark import is_spark, marked, new_mark, source_partitions
from .handover import HandedOver, Handover


@dataclass(frozen=True, slots=True)
class Backfilled:
    """The result of a backfill. records: the number that Spark has read in this run, internal topics included."""

    records: int
    handed_over: HandedOver


class Backfill(Handover):
    """An application without state, and the history to build its state from. A context manager, like Handover."""

    _engine = BACKFILL

    def run(self, since_ms: int | None = None, until_ms: int | None = None, files: str = "") -> Backfilled:
        """Process the records from since_ms (None: the first) until before until_ms (None: the current end).

        Both in ms since 1970, by the records' timestamps. files: see HistoryFiles. Topics with records there are read
        from the files, and the local engine continues in the topics after these records. An interrupted backfill
        continues where it stopped, with its original arguments. Raises StreamsError if the application has offsets
        already, or if the files do not fit, CheckpointError.
        """
        from ..queries.streaming_queries import StreamingQueries

        side = self._side()
        committed = self._group.committed(source_partitions(self._built, self._config, self._counts))
        if side.owner is not None:
            require_engine(side.owner, BACKFILL, side.checkpoint)
            if not is_spark(side.owner, committed):
                return Backfilled(0, self.to_local())  # only the last steps are missing
        elif any(committed.values()):
            raise StreamsError(
                f"The group {self._application_id} has committed offsets: a backfill is for an application without "
                "state. `penstock reset` starts it over."
            )
        else:
            begun = self._begin(since_ms, until_ms, files)
            self._mark(side)
            side.keep(begun)
        assert side.owner is not None
        assert self._lease is not None
        self._group.move(marked(_starts(side.owner), side.owner.mark))
        queries = StreamingQueries(
            self._topology,
            self._config,
            self._spark,
            self._lease,
            lambda built: make_topics_ready(self._config, built, changelogs=True),
            backfill=True,
        )
        self._progress("history read by Spark", 0, 1)
        read = queries.process_available()
        return Backfilled(read, self.to_local())

    def _begin(self, since_ms: int | None, until_ms: int | None, files: str) -> Ownership:
        from ..queries.history_files import HistoryFiles, source_serdes

        topics = self._topics()
        starts: dict[str, dict[int, int]] = {}
        ends: dict[str, dict[int, int]] = {}
        if files:
            history = HistoryFiles(files, source_serdes(self._built))
            starts, ends = history.stretch(self._spark, topics, since_ms, until_ms)
            if not ends:
                raise StreamsError(f"No record in the files at {files} is of {', '.join(sorted(topics))}.")
            history.check_follows(ends, self._at(ends, Target()), self._at(ends, Target(latest=True)))
        in_files = tuple(sorted(ends))
        others = topics - ends.keys()
        starts |= self._at(others, Target(since_ms=since_ms))
        if until_ms is not None:
            ends |= self._at(others, Target(since_ms=until_ms))
        return Ownership(BACKFILL, 1, starts, (), ends, new_mark(), files, in_files)

    def _topics(self) -> set[str]:
        internal = {topic for one in self._built for topic in one.repartition_topics}
        return {topic for one in self._built for topic in one.source_topics} - internal

    def _at(self, topics: Collection[str], target: Target) -> dict[str, dict[int, int]]:
        """Return the offsets of a target in the user's topics."""
        found: dict[str, dict[int, int]] = {}
        for move in self._group.moves(topics, target):
            found.setdefault(move.partition.topic, {})[move.partition.partition] = move.offset
        return found


def _starts(owner: Ownership) -> list[Move]:
    """Return the moves to the start of a backfill."""
    return [
        Move(TopicPartition(topic, number), None, offset)
        for topic, partitions in owner.offsets.items()
        for number, offset in partitions.items()
    ]

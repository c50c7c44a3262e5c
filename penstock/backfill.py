"""Builds an application's state from history on Spark, and hands it to the local engine. See docs/spark.md."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.application_reset import Move, Target
from penstock.engine_mark import is_spark, marked, new_mark, source_partitions
from penstock.handover import HandedOver, Handover
from penstock.pipeline.ownership import BACKFILL, Ownership, require_engine
from penstock.spark import make_topics_ready
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill has done. records: how many Spark has read in this run, internal topics included."""

    records: int
    handed_over: HandedOver


class Backfill(Handover):
    """An application without state, and the history it is to begin with. A context manager, as Handover is."""

    def run(self, since_ms: int | None = None, until_ms: int | None = None) -> Backfilled:
        """Process the records from since_ms (None: the first) until before until_ms (None: what there is now).

        Both in ms since 1970, by the records' timestamps. A backfill that was broken off goes on where it was, with the
        times it was begun with. Raises StreamsError if the application has offsets already, CheckpointError.
        """
        from penstock.pipeline.spark_streams import SparkStreams

        side = self._side()
        committed = self._group.committed(source_partitions(self._built, self._config, self._counts))
        if side.owner is not None:
            require_engine(side.owner, BACKFILL, side.checkpoint)
            if not is_spark(side.owner, committed):
                return Backfilled(0, self.to_local())  # only the last steps were missing
        elif any(committed.values()):
            raise StreamsError(
                f"The group {self._application_id} has committed offsets: a backfill is for an application without "
                "state. `penstock reset` starts it over."
            )
        else:
            self._mark(side)
            ends = {} if until_ms is None else self._offsets_at(until_ms)
            side.keep(Ownership(BACKFILL, 1, self._offsets_at(since_ms), (), ends, new_mark()))
        assert side.owner is not None
        self._group.move(marked(_starts(side.owner), side.owner.mark))
        queries = SparkStreams(
            self._topology,
            self._config,
            self._spark,
            side.checkpoint,
            lambda built: make_topics_ready(self._config, built, changelogs=True),
            backfill=True,
        )
        self._progress("history read by Spark", 0, 1)
        read = queries.process_available()
        return Backfilled(read, self.to_local())

    def _offsets_at(self, time_ms: int | None) -> dict[str, dict[int, int]]:
        """Return the offsets of the user's topics at a time, None: their first records."""
        internal = {topic for one in self._built for topic in one.repartition_topics}
        topics = {topic for one in self._built for topic in one.source_topics} - internal
        found: dict[str, dict[int, int]] = {}
        for move in self._group.moves(topics, Target(since_ms=time_ms)):
            found.setdefault(move.partition.topic, {})[move.partition.partition] = move.offset
        return found


def _starts(owner: Ownership) -> list[Move]:
    """Return the moves to where a backfill begins."""
    return [
        Move(TopicPartition(topic, number), None, offset)
        for topic, partitions in owner.offsets.items()
        for number, offset in partitions.items()
    ]

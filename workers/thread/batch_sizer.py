"""How many records one iteration of the loop takes on.

Kafka Streams' numIterations counts records, because there one call processes one record. Here a call processes a batch,
so an iteration stands for as many records as fit into a target time: thousands of fast ones, one of a slow kind. That
keeps what happens between two batches (punctuation, commits that were requested, the liveness beat) as punctual.
"""

from __future__ import annotations

#: How long one call of process should take at most, in ms: short beside poll.ms and the liveness beat, long beside the
#: few microseconds that the call costs itself.
TARGET_MS = 50
#: More records than this at once gain nothing.
RECORDS_MAX = 1 << 17


class BatchSizer:
    """Scales numIterations so that processing takes about TARGET_MS."""

    def __init__(self) -> None:
        self._records_per_iteration = 1.0

    def max_records(self, iterations: int) -> int:
        """Return how many records each task may process now."""
        return max(1, min(RECORDS_MAX, int(iterations * self._records_per_iteration)))

    def record(self, iterations: int, processed: int, latency_ms: int) -> None:
        """Take in how long it took: halve what is too slow, double what was used up quickly.

        Many tasks may take that long with one record each: then there is nothing to halve.
        """
        if latency_ms > TARGET_MS:
            if self.max_records(iterations) > 1:
                self._records_per_iteration /= 2
        elif processed >= self.max_records(iterations) and latency_ms <= TARGET_MS // 4:
            self._records_per_iteration = min(self._records_per_iteration * 2, RECORDS_MAX)

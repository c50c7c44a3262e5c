"""The number of records that one iteration of the loop processes.

Kafka Streams' numIterations counts records, because there one call processes one record. Here a call processes a batch,
so one iteration stands for as many records as fit into a target time: thousands of fast ones, or a single slow one.
This keeps punctuation, requested commits and the liveness beat, which run between batches, as punctual as in Kafka
Streams.
"""

from __future__ import annotations

#: Target time of one call of process, in ms: short compared with poll.ms and the liveness beat, long compared with the
#: few microseconds that the call itself costs.
TARGET_MS = 50
#: Larger batches are not faster.
RECORDS_MAX = 1 << 17


class BatchSizer:
    """Scales numIterations so that processing takes about TARGET_MS."""

    def __init__(self) -> None:
        self._records_per_iteration = 1.0

    def max_records(self, iterations: int) -> int:
        """Return how many records each task may process now."""
        return max(1, min(RECORDS_MAX, int(iterations * self._records_per_iteration)))

    def record(self, iterations: int, processed: int, latency_ms: int) -> None:
        """Adapt to the time of a batch: halve the size if it was too slow, double it if a full batch was fast.

        Many tasks may take that long with one record each; then the size cannot be halved.
        """
        if latency_ms > TARGET_MS:
            if self.max_records(iterations) > 1:
                self._records_per_iteration /= 2
        elif processed >= self.max_records(iterations) and latency_ms <= TARGET_MS // 4:
            self._records_per_iteration = min(self._records_per_iteration * 2, RECORDS_MAX)

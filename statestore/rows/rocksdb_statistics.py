"""Metrics from RocksDB's statistics of one store, under Kafka Streams' names (RocksDBMetricsRecorder; KIP-471).

All of them cover the time since the store was opened. Times in ms, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Counters (tickers) without "rocksdb.", by the metric that shows them.
_TOTALS = {
    "bytes-written-total": "bytes.written",
    "bytes-read-total": "bytes.read",
    "memtable-bytes-flushed-total": "flush.write.bytes",
    "number-file-errors-total": "no.file.errors",
}
#: Counters of which a rate is shown.
_RATES = {
    "bytes-written-rate": "bytes.written",
    "bytes-read-rate": "bytes.read",
    "memtable-bytes-flushed-rate": "flush.write.bytes",
    "bytes-written-compaction-rate": "compact.write.bytes",
    "bytes-read-compaction-rate": "compact.read.bytes",
    "write-stall-duration-avg": "stall.micros",
}
#: Metrics of hits and misses, by the beginning of their counters' names.
_RATIOS = {
    "memtable-hit-ratio": "memtable",
    "block-cache-data-hit-ratio": "block.cache.data",
    "block-cache-index-hit-ratio": "block.cache.index",
    "block-cache-filter-hit-ratio": "block.cache.filter",
}
#: Distributions of times in microseconds, by the beginning of the metrics' names.
_TIMES = {"memtable-flush-time": "db.flush.micros", "compaction-time": "compaction.times.micros"}


def statistics_metrics(text: str) -> dict[str, float]:
    """Return the metrics of statistics as RocksDB prints them.

    A line has a counter (``rocksdb.bytes.read COUNT : 5``) or a distribution (``… P100 : 7.0 COUNT : 2 SUM : 9``).
    """
    found = _parsed(text)

    def count(name: str) -> float:
        return found.get(f"rocksdb.{name}", {}).get("COUNT", 0.0)

    metrics = {name: count(ticker) for name, ticker in _TOTALS.items()}
    metrics["write-stall-duration-total"] = count("stall.micros") / 1000
    metrics["number-open-files"] = count("no.file.opens") - count("no.file.closes")
    for name, tickers in _RATIOS.items():
        hits, misses = count(f"{tickers}.hit"), count(f"{tickers}.miss")
        metrics[name] = hits / (hits + misses) if hits + misses else 0.0
    for name, histogram in _TIMES.items():
        times = found.get(f"rocksdb.{histogram}", {})
        metrics[f"{name}-avg"] = times.get("SUM", 0.0) / (times.get("COUNT") or 1) / 1000
        metrics[f"{name}-max"] = times.get("P100", 0.0) / 1000
    return metrics


def statistics_counters(text: str) -> dict[str, int]:
    """Return the counters behind the metrics that are rates, by metric; in bytes, those of stalls in microseconds."""
    found = _parsed(text)
    return {name: int(found.get(f"rocksdb.{ticker}", {}).get("COUNT", 0)) for name, ticker in _RATES.items()}


def _parsed(text: str) -> dict[str, Mapping[str, float]]:
    return {name: numbers for name, numbers in map(_read, text.splitlines()) if numbers}


def _read(line: str) -> tuple[str, Mapping[str, float]]:
    name, *rest = line.replace(" : ", " ").split()
    return name, {key: float(number) for key, number in zip(rest[::2], rest[1::2], strict=True)}

"""Runs one of the benchmark's topologies in Penstock until SIGTERM: topology, file with the properties."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock import KafkaStreams


def main(topology: str, properties: Path) -> int:
    """Run benchmarks.topologies:<topology>; returns the exit code."""
    lines = properties.read_text("utf-8").splitlines()
    config = dict(line.split("=", 1) for line in lines if line)
    with KafkaStreams(f"benchmarks.topologies:{topology}", config) as streams:
        return streams.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

"""``python -m tests.java``: every move between Java and Penstock.

Against the broker of $KAFKA_BOOTSTRAP_SERVERS, or its own dev broker. ``--kafka-streams 3.9.1`` runs that version
on Java instead of the latest. Further arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from tests.java.versions import VERSION_VARIABLE, locks


def main() -> int:
    """Run the tests; return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.java", description="Every move between Java and Penstock.")
    parser.add_argument("--kafka-streams", metavar="VERSION", choices=sorted(locks()), help="one of: %(choices)s")
    chosen, arguments = parser.parse_known_args()
    if chosen.kafka_streams:
        os.environ[VERSION_VARIABLE] = chosen.kafka_streams
    return int(pytest.main([str(Path(__file__).parent), "-m", "", *arguments]))


if __name__ == "__main__":
    sys.exit(main())

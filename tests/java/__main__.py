"""``python -m tests.java``: every move between Java and Penstock.

Against the broker of $KAFKA_BOOTSTRAP_SERVERS, or a dev broker of its own. Arguments go to pytest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), "-m", "", *sys.argv[1:]]))

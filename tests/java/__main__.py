"""``python -m tests.java``: every move between Java and Penstock.

Against the broker of $KAFKA_BOOTSTRAP_SERVERS, or a dev broker of its own. Arguments go to pytest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .test_mixed_group import EVERYTHING

if __name__ == "__main__":
    os.environ[EVERYTHING] = "yes"
    sys.exit(pytest.main([str(Path(__file__).parent), *sys.argv[1:]]))

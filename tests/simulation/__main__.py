"""python -m tests.simulation --seeds 2000 [--from FIRST_SEED] [--no-table] | --trace SEED | --mutants."""

from __future__ import annotations

import sys

from tests.simulation.command import main

sys.exit(main(sys.argv[1:]))

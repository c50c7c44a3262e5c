"""``python -m tests.wire --plans N``: an application behind the proxy, one random plan after the other.

Prints one line for each plan, and a verdict. The first Ctrl-C ends the plans early, the second one ends everything.
Exit status 0 if no record was lost, duplicated or stuck; otherwise 1, and the directory with the logs is kept.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.checker import EXACTLY_ONCE, SHOWN
from tests.chaos.interruption import end_early_at_sigint
from tests.wire.run import WirePlans


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire")
    parser.add_argument("--plans", type=int, default=20, help="how many (20)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first plan; the next ones follow (1)")
    parser.add_argument("--guarantee", choices=[EXACTLY_ONCE, "at_least_once"], default=EXACTLY_ONCE)
    parser.add_argument("--protocol", choices=["classic", "streams"], default="classic", help="group.protocol")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    directory = Path(tempfile.mkdtemp(prefix="penstock-wire-"))
    print(f"{arguments.guarantee}, {arguments.protocol} protocol; in {directory}", flush=True)
    plans = WirePlans(directory, arguments.guarantee, arguments.protocol, sys.stdout)
    end_early_at_sigint(plans.interrupt)
    result = plans.run(range(arguments.first, arguments.first + arguments.plans))
    for line in (*result.findings, *(result.verdict.state[:SHOWN] if result.verdict else ())):
        print(line)
    print(result)
    if result.good:
        shutil.rmtree(directory)
        return 0
    print(f"Logs, state and the broker's data are in {directory}")
    return 1


if __name__ == "__main__":
    sys.exit(main())

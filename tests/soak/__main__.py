"""``python -m tests.soak --minutes 10 [--rate 500] [--http]``.

Runs an application on two stream threads under steady load, and samples memory, file handles and threads of all its
processes. Exit status 0 if they stayed within their shares of the memory, nothing grew after the warm-up, and all
counts came out right; else 1, and the directory with log and state is kept. With --http clients crowd its HTTP server
for a part of the time, which must not change the rate of processing, and of which nothing may be left. Uses the broker
of KAFKA_BOOTSTRAP_SERVERS, or its own broker.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from penstock.dev.dev_broker import DevBroker
from tests.soak.run import Outcome, soak


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[2])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--rate", type=int, default=500, help="records per second (500)")
    parser.add_argument("--http", action="store_true", help="with load on the HTTP server")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    outcome = _run(directory, 60 * arguments.minutes, arguments.rate, arguments.http)
    print("\n".join(outcome.lines()))
    if outcome.faults:
        print(f"Log and state are in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


def _run(directory: Path, seconds: float, rate: int, http: bool) -> Outcome:
    application = directory / "application"
    application.mkdir()

    def tell(line: str) -> None:
        print(line, flush=True)

    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        return soak(application, given, seconds, rate, tell, http=http)
    broker = DevBroker("soak", directory / "broker")
    address = broker.start(detached=False)
    try:
        return soak(application, address, seconds, rate, tell, http=http)
    finally:
        broker.stop()


if __name__ == "__main__":
    sys.exit(main())

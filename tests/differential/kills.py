"""``python -m tests.differential.kills``: a count on Spark whose driver or executors are killed again and again.

The kills come in each phase of a micro-batch in turn: see PHASES. The
counts at the end have to be those of the input, each record once; with exactly-once the topic of counts has each of
them once, too. The executors are their own processes (local-cluster mode).

Prints a line for each scenario and ends with "N of M scenarios agree"; exit status 0 only if all do.
$KAFKA_BOOTSTRAP_SERVERS names the broker, else a dev broker is started.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from penstock.topology.config.config_keys import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from tests.differential.__main__ import broker
from tests.differential.application import PHASES, Application, kill_all
from tests.waiting import PATIENCE_SECONDS


def kill_the_driver(application: Application, kills: int) -> None:
    """Kill the driver with all its processes, and restart it."""
    for number in range(kills):
        with application.running() as process:
            count_more(application)
            disturb(application, number, partial(kill_all, process))
    with application.running() as process:
        finish(application, process)


def kill_executors(application: Application, kills: int) -> None:
    """Kill the executor of a running application."""
    with application.running() as process:
        for number in range(kills):
            count_more(application)
            executor, *_ = application.executors(process)
            disturb(application, number, executor.kill)
        finish(application, process)


def count_more(application: Application) -> None:
    """Produce records and wait for their counts. Earlier counts must be right too, and the application must be
    running.
    """
    application.produce()
    application.await_counts()


def disturb(application: Application, number: int, kill: Callable[[], None]) -> None:
    """Produce records and kill, in another phase each time."""
    application.produce_until(PHASES[number % len(PHASES)])
    kill()


def finish(application: Application, process: subprocess.Popen[str]) -> None:
    """Wait for the right counts, and stop the application as an operator does."""
    count_more(application)
    process.send_signal(signal.SIGTERM)
    status = process.wait(PATIENCE_SECONDS)
    if status != 0:
        raise AssertionError(f"Exit status {status}; the log ends with\n{application.log.read_text()[-3000:]}")


Scenario = Callable[[Application, int], None]
SCENARIOS: Mapping[str, tuple[Scenario, str]] = {
    "driver": (kill_the_driver, "local[2]"),
    "executor": (kill_executors, "local-cluster[2,1,1024]"),
}


def run(name: str, servers: str, kills: int, guarantee: str) -> bool:
    """Run a scenario and print its result; return True if the counts were right."""
    scenario, master = SCENARIOS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        application = Application(servers, directory, master, guarantee=guarantee)
        try:
            with application.topics():
                scenario(application, kills)
        except (AssertionError, TimeoutError) as error:
            print(f"{name}: {error}", flush=True)
            return False
    print(
        f"{name}: killed {kills} times, {application.produced} records were counted once each, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return True


def main() -> int:
    """Read the command line, run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.kills", description="Kill Spark, and count.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--kills", type=int, default=4, help="how often each is killed (4)")
    guarantees = (AT_LEAST_ONCE, EXACTLY_ONCE_V2)
    parser.add_argument("--guarantee", choices=guarantees, default=AT_LEAST_ONCE, help="processing.guarantee")
    options = parser.parse_args()
    names = options.scenarios or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {', '.join(unknown)}")
    with broker() as servers:
        agree = sum(run(name, servers, options.kills, options.guarantee) for name in names)
    print(f"{agree} of {len(names)} scenarios agree")
    return 0 if agree == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())

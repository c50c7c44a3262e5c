"""``python -m tests.differential.kills``: a count on Spark whose driver or executors are killed again and again.

Each kill comes with records under way: right after they were produced, or as soon as the first of them is counted. The
counts at the end have to be those of the input, each record once. The executors are their own processes
(local-cluster mode), whose Python has no Penstock but the zip that the session sends them.

Prints a line for each scenario and ends with "N of M scenarios agree"; exit status 0 only if all do.
$KAFKA_BOOTSTRAP_SERVERS names the broker, else a dev broker is started.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.differential.__main__ import broker
from tests.differential.application import DEADLINE_SECONDS, Application, kill_all

#: Runs this Python; on executors, for which Spark sets that variable, one that finds its packages but not those that
#: were installed from a checkout (-S: no .pth files).
PYTHON = """#!/bin/sh
if [ -z "$SPARK_EXECUTOR_DIRS" ]; then exec "{driver}" "$@"; fi
PYTHONPATH="$PYTHONPATH:{directory}:{packages}" exec "{base}" -S "$@"
"""


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
            (executor,) = application.executors(process)
            disturb(application, number, executor.kill)
        finish(application, process)
    place = application.place()
    if "penstock.zip" not in place:
        raise AssertionError(f"The executors have Penstock from {place}, not from the zip")


def count_more(application: Application) -> None:
    """Produce records and wait for their counts: also those of before are right then, and the application runs."""
    application.produce()
    application.await_counts()


def disturb(application: Application, number: int, kill: Callable[[], None]) -> None:
    """Produce records and kill: at once, or the next time when the first of them is counted."""
    ends = application.ends()
    application.produce()
    if number % 2:
        application.await_growth(ends)
    kill()


def finish(application: Application, process: subprocess.Popen[str]) -> None:
    """Wait for the right counts, and end the application as an operator does."""
    count_more(application)
    process.send_signal(signal.SIGTERM)
    status = process.wait(DEADLINE_SECONDS)
    if status != 0:
        raise AssertionError(f"Exit status {status}; the log ends with\n{application.log.read_text()[-3000:]}")


def without_penstock(directory: Path) -> dict[str, str]:
    """Return the environment of an application whose executors' Python has no Penstock."""
    command = directory / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    packages = sysconfig.get_path("purelib")
    command.write_text(PYTHON.format(driver=sys.executable, base=base, directory=directory, packages=packages))
    command.chmod(0o755)
    return {"PYSPARK_PYTHON": str(command)}


Scenario = Callable[[Application, int], None]
SCENARIOS: Mapping[str, tuple[Scenario, str]] = {
    "driver": (kill_the_driver, "local[2]"),
    "executor": (kill_executors, "local-cluster[1,1,1024]"),
}


def run(name: str, servers: str, kills: int) -> bool:
    """Run a scenario and print what came of it; return whether the counts were right."""
    scenario, master = SCENARIOS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        environment = without_penstock(directory) if scenario is kill_executors else {}
        application = Application(servers, directory, master, environment)
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
    options = parser.parse_args()
    names = options.scenarios or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {', '.join(unknown)}")
    with broker() as servers:
        agree = sum(run(name, servers, options.kills) for name in names)
    print(f"{agree} of {len(names)} scenarios agree")
    return 0 if agree == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())

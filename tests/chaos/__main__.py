"""``python -m tests.chaos --seed S --kills N --guarantee exactly_once_v2|at_least_once [--protocol classic|streams]
[--workload NAME]``.

Prints one line for each event, and a verdict; Ctrl-C ends the kills early, a second one ends it all at once.
Exit status 0 if the guarantee was kept and every host ended in good order; else 1, and the directory with the logs is
kept.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from .checker import EXACTLY_ONCE, SHOWN
from .run import Chaos, Options
from .schedule import schedule
from .workloads import WORKLOADS


def main() -> int:
    """Run; return the exit status."""
    options, arguments = _options()
    if arguments.dry_run:
        for event in schedule(options.seed, options.kills):
            print(event)
        return 0
    logging.basicConfig(level=logging.WARNING)
    directory = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    print(
        f"seed {options.seed}, {options.kills} kills, {options.guarantee}, {options.protocol} protocol, "
        f"workload {options.workload}; in {directory}"
    )
    start = time.monotonic()
    chaos = Chaos(options, directory, sys.stdout, sys.stderr if sys.stderr.isatty() or arguments.progress else None)
    end_early_at_sigint(chaos)
    outcome = chaos.run()
    print(
        f"{outcome.records} records, {outcome.aborted} more in aborted transactions, {time.monotonic() - start:.0f} s"
    )
    details = [line for report in outcome.reports for line in report.lines()]
    for line in (*outcome.failures, *outcome.verdict.state[:SHOWN], *details):
        print(line)
    print(outcome.verdict)
    if outcome.good:
        shutil.rmtree(directory)
        return 0
    if not outcome.judged:
        print("This run says nothing: the broker itself has made a mistake, see above. Try again.")
    print(f"Logs, state and the broker's data are in {directory}")
    return 1


def end_early_at_sigint(chaos: Chaos) -> None:
    """Let the first SIGINT end the kills and the second one the run, also if it is ignored (a shell's background)."""

    def end_early(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        chaos.interrupt()

    signal.signal(signal.SIGINT, end_early)


def _options() -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[3])
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (1)")
    parser.add_argument("--kills", type=int, default=20, help="how many (20)")
    parser.add_argument("--guarantee", choices=[EXACTLY_ONCE, "at_least_once"], default=EXACTLY_ONCE)
    parser.add_argument("--protocol", choices=["classic", "streams"], default="classic", help="group.protocol")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="numbers", help="see tests/chaos/workloads")
    parser.add_argument("--dry-run", action="store_true", help="print the schedule and do nothing")
    parser.add_argument("--progress", action="store_true", help="a progress line although stderr is no terminal")
    arguments = parser.parse_args()
    given = (arguments.seed, arguments.kills, arguments.guarantee, arguments.protocol)
    return Options(*given, workload=arguments.workload), arguments


if __name__ == "__main__":
    sys.exit(main())

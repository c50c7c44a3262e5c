"""``python -m tests.chaos --seed S --kills N --guarantee exactly_once_v2|at_least_once [--workload NAME] [--brokers 3]
[--checkpoints] [--branches] [--faults …]``.

Prints one line for each event, a table of faults, and a verdict. The first Ctrl-C ends the kills early, the second one
ends everything. Exit status 0 if the guarantee was kept and every host ended cleanly; otherwise 1, and the directory
with the logs is kept.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

from penstock.dev.kafka_distribution import distributions
from tests.chaos.checker import AT_LEAST_ONCE, EXACTLY_ONCE, SHOWN
from tests.chaos.interruption import end_early_at_sigint
from tests.chaos.means import PREVIOUS, why_not
from tests.chaos.options import Options
from tests.chaos.run import Chaos
from tests.chaos.schedule import CHECKPOINTS, FAMILIES, LOSSLESS, PROCESSES, UNCLEAN, Action
from tests.chaos.workloads import WORKLOADS
from tests.chaos.workloads.numbers import Numbers

#: The time between the beginnings of two branches, in seconds.
BRANCH_SECONDS = 30.0


def main() -> int:
    """Run; return the exit status."""
    options, arguments = _options()
    if arguments.dry_run:
        for event in options.events():
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
    end_early_at_sigint(chaos.interrupt)
    outcome = chaos.run()
    print(
        f"{outcome.records} records, {outcome.aborted} more in aborted transactions, {time.monotonic() - start:.0f} s"
    )
    details = [line for report in outcome.reports for line in report.lines()]
    for line in (*outcome.table, *outcome.failures, *outcome.verdict.state[:SHOWN], *details):
        print(line)
    print(outcome.verdict)
    if outcome.good:
        shutil.rmtree(directory)
        return 0
    print(f"Logs, state and the broker's data are in {directory}")
    return 1


def _options() -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[3])
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (1)")
    parser.add_argument("--kills", type=int, default=20, help="how many (20)")
    parser.add_argument("--guarantee", choices=[EXACTLY_ONCE, AT_LEAST_ONCE], default=EXACTLY_ONCE)
    parser.add_argument("--protocol", choices=["classic", "streams"], default="classic", help="group.protocol")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default=Numbers.name, help="see tests/chaos/workloads")
    parser.add_argument("--watch", action="store_true", help="hosts watch each other: penstock.host.watch")
    parser.add_argument("--minutes", type=float, default=0.0, help="as many kills as fit into them, instead of --kills")
    parser.add_argument("--hours", type=float, default=0.0, help="the same; with three brokers and all faults")
    parser.add_argument("--brokers", type=int, choices=[1, 3], help="3: with three controllers (1)")
    parser.add_argument("--faults", type=_families, help=f"of {', '.join(FAMILIES)}, or all ({PROCESSES})")
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="three brokers, at_least_once, unclean elections: loss is legal",
    )
    parser.add_argument("--checkpoints", action="store_true", help=f"adds {CHECKPOINTS} to --faults")
    parser.add_argument(
        "--branches",
        nargs="?",
        type=float,
        const=BRANCH_SECONDS,
        default=0.0,
        metavar="SECONDS",
        help=f"a branch of the application every so often ({BRANCH_SECONDS:.0f})",
    )
    parser.add_argument("--each", action="store_true", help="every kind of fault once, instead of --kills")
    parser.add_argument("--only", type=_actions, help="of these families only these kinds of faults, with commas")
    parser.add_argument("--upgrade-from", choices=list(distributions()), help="a Kafka to begin with, and to leave")
    parser.add_argument("--previous", default=PREVIOUS, help=f"the commit that hosts change to and from ({PREVIOUS})")
    parser.add_argument("--dry-run", action="store_true", help="print the schedule and do nothing")
    parser.add_argument("--progress", action="store_true", help="a progress line although stderr is no terminal")
    arguments = parser.parse_args()
    if arguments.dry_run and arguments.minutes + arguments.hours:
        parser.error("--dry-run would not end: give it --kills instead")
    if arguments.unclean:
        arguments.brokers, arguments.faults, arguments.guarantee = 3, (UNCLEAN,), AT_LEAST_ONCE
    families = arguments.faults or (LOSSLESS if arguments.hours else (PROCESSES,))
    if arguments.checkpoints and CHECKPOINTS not in families:
        families = (*families, CHECKPOINTS)
    brokers = arguments.brokers or (3 if arguments.hours else 1)
    exact = arguments.guarantee == EXACTLY_ONCE
    branches = arguments.branches > 0
    missing = why_not(families, brokers, arguments.previous, arguments.upgrade_from, exact=exact, branches=branches)
    for action in sorted(missing.keys() & (arguments.only or frozenset(Action)), key=lambda action: action.value):
        print(f"skipped: {action.value}: {missing[action]}", file=sys.stderr)
    try:
        return Options(
            arguments.seed,
            arguments.kills,
            arguments.guarantee,
            arguments.protocol,
            each=arguments.each,
            families=families,
            minutes=arguments.minutes + 60 * arguments.hours,
            brokers=brokers,
            upgrade_from=arguments.upgrade_from,
            previous=arguments.previous,
            without=frozenset(missing) | (frozenset(Action) - arguments.only if arguments.only else frozenset()),
            workload=arguments.workload,
            watch=arguments.watch,
            branch_seconds=arguments.branches,
        ), arguments
    except ValueError as error:
        parser.error(str(error))


def _actions(names: str) -> frozenset[Action]:
    """Return the kinds of faults in a comma-separated list; argparse shows the error."""
    return frozenset(Action(name) for name in _split(names, [action.value for action in Action]))


def _families(names: str) -> tuple[str, ...]:
    """Return the fault families in a comma-separated list; argparse shows the error."""
    return LOSSLESS if names == "all" else tuple(_split(names, list(FAMILIES)))


def _split(names: str, known: list[str]) -> list[str]:
    found = names.split(",")
    unknown = [name for name in found if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return found


if __name__ == "__main__":
    sys.exit(main())

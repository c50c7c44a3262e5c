"""A short run with faults of each family; each fault must have an observed effect."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.chaos.checker import AT_LEAST_ONCE
from tests.chaos.means import why_not
from tests.chaos.options import Options
from tests.chaos.run import Outcome, run
from tests.chaos.schedule import BROKERS, CHECKPOINTS, MACHINES, NETWORK, PROCESSES, UNCLEAN, VERSIONS, Action

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]
#: From schedules without long faults; the memory limit, which may take time to be hit, comes last.
SEED_OF_BROKERS, SEED_OF_MACHINES = 2377, 54576


def only(*actions: Action) -> frozenset[Action]:
    """Return all kinds except these."""
    return frozenset(Action) - frozenset(actions)


def chaos(directory: Path, options: Options) -> Outcome:
    missing = why_not(options.families, options.brokers, options.previous, options.upgrade_from, exact=options.exact)
    wanted = {event.action for event in options.events()} & set(missing)
    if wanted:
        pytest.skip("; ".join(f"{action.value}: {missing[action]}" for action in wanted))
    outcome = run(options, directory / "run", io.StringIO())
    print("\n".join((*outcome.events, *outcome.table)))  # pytest shows it if the test fails
    return outcome


def check(outcome: Outcome, *actions: Action) -> None:
    """Check that nothing is lost or duplicated, and that the table shows an effect of each fault."""
    assert outcome.failures == ()
    assert str(outcome.verdict).startswith("0 lost, 0 doubled, 0 out of order, state equal")
    for action in actions:
        (line,) = (line for line in outcome.table if line.startswith(f"{action.value} "))
        assert re.match(rf"{action.value} +1 +[1-9]", line), line


def test_three_brokers_and_a_faulty_network(tmp_path: Path) -> None:
    brokers = (Action.MOVE_LEADERS, Action.STOP_BROKER, Action.KILL_CONTROLLER)
    network = (Action.CUT_COORDINATOR, Action.HALF_OPEN, Action.SLOW_NETWORK)
    options = Options(
        SEED_OF_BROKERS, each=True, families=(BROKERS, NETWORK), brokers=3, without=only(*brokers, *network)
    )
    check(chaos(tmp_path, options), *brokers, *network)


def test_kills_while_checkpoints_travel(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, Options(1, each=True, families=(CHECKPOINTS,)))
    check(outcome, Action.KILL_UPLOAD, Action.KILL_LOAD)
    assert [report.name for report in outcome.reports if "rows on disk" in report.name and report.good]
    assert any(re.match(r"[1-9]\d* checkpoints uploaded, [1-9]\d* loaded", line) for line in outcome.table)


@pytest.mark.long
def test_deleted_keys_stay_deleted_after_checkpoints(tmp_path: Path) -> None:
    """The cases have tables and windows whose keys are deleted; the test driver has the same input, and no faults."""
    options = Options(2, kills=6, families=(PROCESSES, CHECKPOINTS), workload="recorded")
    outcome = chaos(tmp_path, options)
    assert outcome.failures == ()
    assert outcome.verdict.good, outcome.verdict


@pytest.mark.long
def test_faulty_machines_and_other_versions(tmp_path: Path) -> None:
    machines = (Action.CLOCK_APART, Action.BROKEN_DISK, Action.SHORT_OF_MEMORY)
    versions = (Action.OTHER_VERSION, Action.OTHER_PROTOCOL)
    options = Options(SEED_OF_MACHINES, each=True, families=(MACHINES, VERSIONS), without=only(*machines, *versions))
    check(chaos(tmp_path, options), *machines, *versions)


@pytest.mark.long
def test_records_lost_by_an_unclean_election_are_named_and_all_others_arrive(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, Options(1, kills=1, guarantee=AT_LEAST_ONCE, families=(UNCLEAN,), brokers=3))
    assert outcome.failures == ()
    (line,) = (line for line in outcome.table if line.startswith(f"{Action.UNCLEAN_ELECTION.value} "))
    assert re.match(rf"{Action.UNCLEAN_ELECTION.value} +1 +[1-9]\d* unclean elections", line), line
    assert re.search(r"^gone from the input: k\d+: \d", str(outcome.verdict), re.MULTILINE), outcome.verdict
    assert str(outcome.verdict).endswith("; 0 of the last records lost")


@pytest.mark.long
def test_an_older_kafka_is_upgraded_under_load(tmp_path: Path) -> None:
    options = Options(1, each=True, families=(PROCESSES,), without=only(Action.KILL_WORKER), upgrade_from="3.9.1")
    outcome = chaos(tmp_path, options)
    check(outcome, Action.KILL_WORKER)
    (line,) = (line for line in outcome.events if Action.UPGRADE_CLUSTER.value in line)
    assert re.search(r"from 3\.9\.1 to [4-9]\.\d+\.\d+; .*transaction\.version 0 to 2", line), line

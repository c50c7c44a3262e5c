"""Java and Penstock as members of one group at the same time: the results are those of Java alone.

bin/test runs one move, and the kills with the other protocol; ``python -m tests.java`` runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.supervisor.exit_codes import ExitCode
from tests.java.conftest import MakeHandover
from tests.java.handover import ROOT, Handover, Instance, assert_as_one_uninterrupted_run, assert_nothing_is_lost
from tests.java.program import VARIABLE
from tests.java.versions import WHOLE_HOSTS_SINCE, is_since
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

PROTOCOLS = {"classic": {}, "streams": {"group.protocol": "streams"}}
GUARANTEES = {"at_least_once": {}, "exactly_once_v2": {"processing.guarantee": "exactly_once_v2"}}


#: What a leader of Penstock's logs.
LEADS = "Leading generation"


def share(application: Handover) -> None:
    """Feed while the members of both kinds have tasks, and wait until all is processed."""
    eventually(application.shared, application.members, PATIENCE_SECONDS)
    application.feed()
    application.settle()


def move(application: Handover, before: Instance, after: str) -> Instance:
    """Move the application from one instance to one of the other kind, while records flow; return the new one."""
    application.feed()
    start = application.start_penstock if after.startswith("penstock") else application.start_java
    instance = start(after)
    application.settle()
    share(application)
    application.feed()
    before.stop()
    application.settle()
    application.feed()
    application.settle()
    return instance


@pytest.mark.parametrize(
    ("protocol", "guarantee"),
    [
        ("streams", "at_least_once"),
        pytest.param("classic", "exactly_once_v2", marks=pytest.mark.long),
        pytest.param("classic", "at_least_once", marks=pytest.mark.long),
        pytest.param("streams", "exactly_once_v2", marks=pytest.mark.long),
    ],
)
def test_a_rolling_move_from_java_and_back(handover: MakeHandover, protocol: str, guarantee: str) -> None:
    config = PROTOCOLS[protocol] | GUARANTEES[guarantee]
    application = handover("moved", **config)
    java = application.start_java("java")
    topics = application.internal_topics()
    penstock = move(application, java, "penstock")
    java = move(application, penstock, "java-again")
    java.stop()
    assert application.internal_topics() == topics, "no internal topic is added or recreated"
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", **config))


@pytest.mark.parametrize(
    ("protocol", "guarantee"),
    [
        ("classic", "exactly_once_v2"),
        ("classic", "at_least_once"),
        ("streams", "exactly_once_v2"),
        ("streams", "at_least_once"),
    ],
)
@pytest.mark.long
def test_killed_members_of_either_kind_and_leaders(handover: MakeHandover, protocol: str, guarantee: str) -> None:
    """In the middle of the records. Who has been a member of a classic group for longest leads."""
    config = PROTOCOLS[protocol] | GUARANTEES[guarantee]
    application = handover("killed", **config)
    java = application.start_java("java")
    penstock = application.start_penstock("penstock")
    share(application)
    assert not penstock.has_logged(LEADS)
    application.feed()
    java.kill()
    application.settle()
    assert penstock.has_logged(LEADS) == (protocol == "classic")
    java = application.start_java("java-again")
    share(application)
    application.feed()
    penstock.kill_a_thread()
    application.settle()
    share(application)
    application.feed()
    penstock.kill()
    application.settle()
    application.feed()
    application.settle()
    java.stop()
    compare = assert_nothing_is_lost if guarantee == "at_least_once" else assert_as_one_uninterrupted_run
    compare(application, handover("uninterrupted", **config))


def is_spread(hosts: str) -> bool:
    """True if each of two hosts has standby tasks for the active tasks of the other one."""
    lists = [part.partition(" active ")[2].split(" standby ") for part in hosts.split("; ")]
    parts = [[set(text.split()) for text in pair] for pair in lists]
    if len(parts) != 2 or not all(all(part) for part in parts):
        return False
    (active, standby), (other_active, other_standby) = parts
    return not active & other_active and standby <= other_active and other_standby <= active


@pytest.mark.parametrize("protocol", ["classic", "streams"])
@pytest.mark.long
def test_each_kind_has_the_standby_tasks_of_the_other_and_knows_its_host(handover: MakeHandover, protocol: str) -> None:
    config = PROTOCOLS[protocol]
    application = handover("served", num_standby_replicas="1", **config)
    java = application.start_java("java", application_server="java.example:7001")
    penstock = application.start_penstock("penstock", application_server="penstock.example:7002")
    share(application)

    def known() -> bool:
        """True if both list both hosts with all of their tasks.

        In a streams group an older Java knows only one thread's tasks of each host.
        """
        views = java.hosts(), penstock.hosts()
        java_knows_all = protocol == "classic" or is_since(WHOLE_HOSTS_SINCE)
        return is_spread(views[1]) and (views[0] == views[1] if java_knows_all else len(views[0].split("; ")) == 2)

    eventually(known, lambda: (java.hosts(), penstock.hosts()), PATIENCE_SECONDS)
    application.feed()
    java.kill()
    application.settle()
    application.feed()
    application.settle()
    penstock.stop()
    assert_nothing_is_lost(application, handover("uninterrupted", **config))


def penstock_command(application: Handover, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of penstock with the application's settings."""
    file = application.properties("other")
    settings = {**application.config, "state.dir": str(application.directory / "other")}
    assignments = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *arguments, *assignments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 2,
        check=False,
        cwd=ROOT,
        env={**os.environ, VARIABLE: str(file)},
    )


#: The messages about another topology, by protocol: from `penstock plan`, and from `penstock run`.
TOLD = {
    "classic": ("in the running group it reads", "runs another topology: task"),
    "streams": ("is no longer read", "in the group, "),
}


@pytest.mark.parametrize("protocol", ["classic", pytest.param("streams", marks=pytest.mark.long)])
def test_another_topology_is_refused_and_affects_no_member(handover: MakeHandover, protocol: str) -> None:
    planned, refused = TOLD[protocol]
    application = handover("guarded", **PROTOCOLS[protocol])
    java = application.start_java("java")
    application.feed()
    application.settle()
    eventually(lambda: bool(application.members()), application.members, PATIENCE_SECONDS)
    fits = penstock_command(application, "plan", "tests.java.program:fitting")
    assert fits.returncode == ExitCode.OK, fits
    assert "Compared with the group" in fits.stdout
    other = penstock_command(application, "plan", "tests.java.program:other")
    assert other.returncode == ExitCode.TOPOLOGY, other
    assert planned in other.stdout
    ended = penstock_command(application, "run", "tests.java.program:other")
    assert ended.returncode != ExitCode.OK
    assert refused in ended.stderr
    assert java.runs
    application.feed()
    application.settle()
    java.stop()
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", **PROTOCOLS[protocol]))

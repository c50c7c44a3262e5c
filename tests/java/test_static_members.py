"""Static members on Java and on Penstock in one group: a restart moves no task."""

from __future__ import annotations

import pytest

from tests.java.conftest import MakeHandover
from tests.java.handover import THREADS, Handover, Instance, assert_as_one_uninterrupted_run, instance_of
from tests.java.versions import STATIC_STREAMS_MEMBERS_SINCE, is_since
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

#: Long enough for a JVM to restart on a busy machine.
SESSION_MS = "45000"
TASKS = 6


def start(application: Handover, kind: str, name: str) -> Instance:
    """Start an instance whose members are static."""
    starts = {"java": application.start_java, "penstock": application.start_penstock}
    return starts[kind](name, group_instance_id=name)


def assert_a_restart_moves_no_task(
    application: Handover, kind: str, name: str, instance: Instance, other: Instance
) -> Instance:
    """Restart an instance; return the new one. The other one must stay RUNNING."""
    placed, states = application.placed(instance_of), other.states
    instance.stop()
    application.feed()
    instance = start(application, kind, name)
    application.settle()
    assert application.placed(instance_of) == placed
    assert other.states == states, "there was no rebalance"
    return instance


def balance(application: Handover, **instances: Instance) -> None:
    """Wait until these instances run, all their members have tasks, and all tasks an owner."""

    def is_balanced() -> bool:
        placed = application.placed(instance_of)
        return (
            all(instance.runs for instance in instances.values())
            and placed.keys() == {f"{name.replace('_', '-')}-{n + 1}" for name in instances for n in range(THREADS)}
            and all(tasks.active for tasks in placed.values())
            and sum(len(tasks.active) for tasks in placed.values()) == TASKS
        )

    eventually(is_balanced, lambda: application.placed(instance_of), PATIENCE_SECONDS)


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_static_members_of_each_kind_restart_and_leave(handover: MakeHandover, protocol: str) -> None:
    if protocol == "streams" and not is_since(STATIC_STREAMS_MEMBERS_SINCE):
        pytest.skip("this version of Kafka Streams has no static members in streams groups")
    config = {"session_timeout_ms": SESSION_MS, "group_protocol": protocol}
    application = handover("static", **config)
    java = start(application, "java", "java")
    application.feed()
    application.settle()
    penstock = start(application, "penstock", "penstock")
    balance(application, java=java, penstock=penstock)
    penstock = assert_a_restart_moves_no_task(application, "penstock", "penstock", penstock, java)
    java = assert_a_restart_moves_no_task(application, "java", "java", java, penstock)  # the leader of a classic group
    java.stop()  # permanently
    eventually(lambda: application.members().get("java") == 0, application.members, PATIENCE_SECONDS)
    application.feed()
    application.settle()
    java = start(application, "java", "java-again")
    balance(application, java_again=java, penstock=penstock)
    java = assert_a_restart_moves_no_task(application, "java", "java-again", java, penstock)
    penstock = assert_a_restart_moves_no_task(application, "penstock", "penstock", penstock, java)  # leads now
    penstock.stop()
    eventually(lambda: application.members().get("penstock") == 0, application.members, PATIENCE_SECONDS)
    application.feed()
    application.settle()
    java.stop()
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", **config))

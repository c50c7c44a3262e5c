"""The checker also judges how hosts end: without a request, after a request to stop, and by a killed supervisor."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.chaos.agenda import Agenda
from tests.chaos.broker_logs import ForgottenOffsets
from tests.chaos.faults import Stage
from tests.chaos.hosts import Host
from tests.chaos.options import Options
from tests.chaos.process_faults import ProcessFaults, stop_cleanly
from tests.chaos.recovery import Recovery
from tests.chaos.run import FORGOTTEN, Chaos
from tests.chaos.schedule import Action, Event


class Ending:
    """Replaces a Host whose processes end in one particular way."""

    name = "host-1"
    troubled = excused = False
    may_end = Host.may_end
    runs = True

    def __init__(self, code: int | None) -> None:
        self.exit_code = code
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        self.exit_code = None

    def stop(self) -> int:
        return self.exit_code or 0

    def kill_supervisor(self) -> bool:
        return False

    def workers(self) -> list[int]:
        return []

    def pids(self) -> list[int]:
        return []

    def last_error(self) -> str:
        return "why"


class Silent:
    """Replaces a reader without records."""

    seen: ClassVar[dict[tuple[str, int], int]] = {}

    def poll(self, seconds: float) -> list[Any]:
        return []


@pytest.fixture
def chaos(tmp_path: Path) -> Chaos:
    made = Chaos(Options(seed=1, kills=1), tmp_path, io.StringIO(), None)
    made._reader = Silent()  # type: ignore[assignment]
    return made


def stage(failures: list[str]) -> Stage:
    agenda = Agenda()
    recovery = Recovery(agenda, dict, lambda stalled: failures.append(str(stalled)))
    return Stage(agenda, recovery, lambda _line: None, failures.append)


def end(chaos: Chaos, host: Ending) -> Ending:
    chaos._hosts = [host]  # type: ignore[list-item]
    chaos._turn()
    return host


def test_a_host_that_ends_by_itself_is_a_failure_and_is_restarted(chaos: Chaos) -> None:
    assert end(chaos, Ending(1)).starts == 1
    assert chaos.failures == ["host-1 ended by itself with exit code 1: why"]
    chaos._turn()
    assert len(chaos.failures) == 1


def test_a_host_ended_by_a_disk_failure_restarts_unless_the_disk_still_fails(chaos: Chaos) -> None:
    excused, troubled = Ending(1), Ending(1)
    excused.excused = troubled.troubled = True
    assert end(chaos, excused).starts == 1
    assert end(chaos, troubled).starts == 0
    assert chaos.failures == []
    assert ["ended by itself" in line for line in chaos._lines] == [True], "it is said all the same"


class Forgetful(Ending):
    """Ends because the group has no committed offsets."""

    def last_error(self) -> str:
        return f"LostOffsetsError: Task 0_1 {FORGOTTEN} numbers-1"


@pytest.mark.parametrize(
    ("host", "seconds_ago", "is_failure"),
    [
        (Forgetful, 1, False),
        (Forgetful, 3_600, True),
        (Forgetful, None, True),
        (Ending, 1, True),
    ],
)
def test_a_forgetful_coordinator_excuses_only_an_end_for_lack_of_offsets(
    chaos: Chaos, host: type[Ending], seconds_ago: float | None, is_failure: bool
) -> None:
    if seconds_ago is not None:
        at = round((time.time() - seconds_ago) * 1000)
        chaos._broker_logs.forgotten.append(ForgottenOffsets(at, "broker-1", "line"))
    assert end(chaos, host(1)).starts == 1
    assert bool(chaos.failures) is is_failure


def test_a_host_that_does_not_stop_cleanly_is_a_failure() -> None:
    failures: list[str] = []
    assert stop_cleanly(stage(failures), Ending(0)) == 0  # type: ignore[arg-type]
    assert failures == []
    stop_cleanly(stage(failures), Ending(6))  # type: ignore[arg-type]
    assert failures == ["host-1 was told to stop and ended with exit code 6: why"]
    excused = Ending(1)  # a disk failure hit it just before
    excused.excused = True
    assert stop_cleanly(stage(failures), excused) == 1  # type: ignore[arg-type]
    assert len(failures) == 1


def test_workers_that_outlive_their_supervisor_are_a_failure() -> None:
    failures: list[str] = []
    faults = ProcessFaults(stage(failures), [Ending(None)])  # type: ignore[list-item]
    faults.carry_out(Event(1, False, 0, Action.KILL_SUPERVISOR, 0, 0.0, 0, 0))
    assert failures == ["workers of host-1 outlive their supervisor"]

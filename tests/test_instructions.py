"""A guard against slower code: the number of bytecode instructions per record. See benchmarks/instructions.py."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import instructions

#: The count when the limit was set, plus ten percent for differences between Python versions. The kernel's own
#: instructions do not count. Lower a limit when the code gets faster; raise it for new work, and document that work in
#: docs/laboratory.md.
LIMITS = {
    "count": 1.6,
    "count-uncached": 2.7,
    "windowed-count": 1.5,
    "event-time": 3.2,
    "map-filter": 1.1,
    "table-join": 1.6,
    "processor": 3.8,
    "prefix-scan": 12.5,
    "range-scan": 12.9,
    "window-suppress": 6.2,
    "session": 3.0,
    "session-uncached": 3.0,
    "hopping": 6.2,
    "sliding-uncached": 2.7,
    "final-windows-uncached": 3.2,
    "stream-join": 2.5,
    "left-stream-join": 7.1,
    "self-join": 2.9,
    "table-table-join": 1.9,
    "foreign-key-join": 8.7,
    "retraction": 5.9,
}


@pytest.mark.parametrize("name", instructions.SCENARIOS)
def test_a_record_costs_no_more_instructions_than_before(name: str) -> None:
    assert instructions.cost(name) < LIMITS[name]


def test_instructions_are_counted_reproducibly() -> None:
    few, many = instructions.least(instructions.purchases(0, 100)), instructions.least(instructions.purchases(0, 200))
    assert instructions.counted(few) == instructions.counted(few)
    assert 1.9 < instructions.counted(many) / instructions.counted(few) < 2.1


def test_the_command_prints_each_scenario() -> None:
    printed = CliRunner().invoke(instructions.main).output
    assert all(name in printed for name in instructions.SCENARIOS)

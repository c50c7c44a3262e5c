"""A guard against slower code: the number of bytecode instructions per record. See benchmarks/instructions.py."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import instructions

#: The count when the limit was set, plus ten percent for differences between Python versions. The kernel's own
#: instructions do not count. Lower a limit when the code gets faster; raise it for new work, and document that work in
#: docs/laboratory.md.
LIMITS = {
    "count": 1.7,
    "count-uncached": 3.1,
    "windowed-count": 1.6,
    "event-time": 3.3,
    "map-filter": 1.1,
    "table-join": 1.6,
    "processor": 4.2,
    "window-suppress": 6.6,
    "session": 3.3,
    "hopping": 7.1,
    "stream-join": 2.9,
    "table-table-join": 2.1,
    "foreign-key-join": 9.6,
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

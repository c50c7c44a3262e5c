"""A guard against a slower path: how many bytecode instructions a record costs. See benchmarks/instructions.py."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import instructions
from penstock import kernel

#: What was counted in closures when the limit was set, and a tenth more: versions of Python differ. Lower a limit when
#: they get faster; raise it for what they must do, and say in docs/laboratory.md what that is.
LIMITS = {
    "count": 10.8,
    "count-uncached": 11.6,
    "windowed-count": 16.0,
    "event-time": 16.9,
    "map-filter": 3.4,
    "table-join": 6.2,
    "processor": 10.5,
    "window-suppress": 22.5,
    "session": 25.8,
    "hopping": 68.4,
    "foreign-key-join": 42.0,
}


#: The same of loops, with the compiled kernel, whose own instructions do not count.
COMPILED_LIMITS = {
    "count": 2.6,
    "count-uncached": 5.3,
    "windowed-count": 3.3,
    "event-time": 5.4,
    "map-filter": 1.9,
    "table-join": 3.0,
    "processor": 5.7,
    "window-suppress": 8.0,
    "session": 10.9,
    "hopping": 14.3,
    "foreign-key-join": 20.0,
}


@pytest.mark.skipif(kernel.codecs is None, reason="the limits were counted with the kernel's serializers")
@pytest.mark.usefixtures("without_kernel")
@pytest.mark.parametrize("name", instructions.SCENARIOS)
def test_a_record_costs_no_more_than_before(name: str) -> None:
    assert instructions.cost(name) < LIMITS[name]


@pytest.mark.skipif(kernel.cells is None, reason="the compiled kernel is not built here")
@pytest.mark.parametrize("name", instructions.SCENARIOS)
def test_a_record_costs_no_more_than_before_with_the_kernel(name: str) -> None:
    assert instructions.cost(name) < COMPILED_LIMITS[name]


def test_instructions_are_counted_and_each_time_the_same() -> None:
    few, many = instructions.least(instructions.purchases(0, 100)), instructions.least(instructions.purchases(0, 200))
    assert instructions.counted(few) == instructions.counted(few)
    assert 1.9 < instructions.counted(many) / instructions.counted(few) < 2.1


def test_the_command_prints_each_scenario() -> None:
    printed = CliRunner().invoke(instructions.main).output
    assert all(name in printed for name in instructions.SCENARIOS)

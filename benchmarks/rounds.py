"""Scenarios of any kind in rounds, with the systems in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.console import Console

from benchmarks.measure import BenchmarkError
from benchmarks.systems import Named, System

R = TypeVar("R")
S = TypeVar("S", bound=Named)
console = Console(stderr=True)


class Rounds:
    """A number of rounds. A system that fails or gives wrong results is left out of this scenario, and its runs are not
    reported.

    problems: the errors. failed: whether one occurred in a system that is not dispensable.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.problems: list[str] = []
        self.failed = False

    def runs(self, systems: list[System], scenarios: list[S]) -> Iterator[tuple[int, S, System]]:
        """Yield number of the round, scenario and system of each run, without unsupported scenarios."""
        for number in range(self._number):
            # The first system changes from round to round, because the broker may still be working for the previous
            # one.
            order = systems if number % 2 == 0 else systems[::-1]
            for scenario in scenarios:
                for system in order:
                    if system.scenarios is None or scenario.name in system.scenarios:
                        yield number, scenario, system

    def run(
        self, systems: list[System], scenarios: list[S], run_one: Callable[[S, System], R], said: Callable[[S, R], str]
    ) -> dict[S, dict[str, list[R]]]:
        """Run everything. Return the results of run_one(scenario, system) by scenario and system.

        run_one raises BenchmarkError if the system fails or gives wrong results. said: formats a result, to show
        progress.
        """
        results: dict[S, dict[str, list[R]]] = {scenario: {} for scenario in scenarios}
        left_out: set[tuple[S, str]] = set()
        for number, scenario, system in self.runs(systems, scenarios):
            if (scenario, system.name) in left_out:
                continue
            where = f"{scenario.name}, {system.name}"
            try:
                result = run_one(scenario, system)
            except BenchmarkError as error:
                left_out.add((scenario, system.name))
                results[scenario].pop(system.name, None)
                self.problems.append(f"{where}: {error}")
                self.failed |= not system.dispensable
                console.print(f"round {number + 1}: {where}: REFUSED, and left out from here on: {error}")
                continue
            results[scenario].setdefault(system.name, []).append(result)
            console.print(f"round {number + 1}: {where}: {said(scenario, result)}")
        return {scenario: by_system for scenario, by_system in results.items() if by_system}

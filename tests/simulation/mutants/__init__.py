"""Mutants: the real code, each time with one rule broken. A proof that cannot fail proves nothing."""

from __future__ import annotations

from tests.simulation.mutants.commits import COMMIT_MUTANTS
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.ownership import OWNERSHIP_MUTANTS
from tests.simulation.mutants.producers import PRODUCER_MUTANTS

#: Some are faults that the code once had: their docstrings say "this was found".
MUTANTS: tuple[Mutant, ...] = (*COMMIT_MUTANTS, *OWNERSHIP_MUTANTS, *PRODUCER_MUTANTS)

__all__ = ["MUTANTS", "Mutant"]

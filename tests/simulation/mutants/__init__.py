"""Mutants: the real code, each time with one rule broken. A proof that cannot fail proves nothing."""

from __future__ import annotations

from .commits import COMMIT_MUTANTS
from .mutant import Mutant
from .ownership import OWNERSHIP_MUTANTS

#: Some are faults that the code once had: those say "this was found".
MUTANTS: tuple[Mutant, ...] = (*COMMIT_MUTANTS, *OWNERSHIP_MUTANTS)

__all__ = ["MUTANTS", "Mutant"]

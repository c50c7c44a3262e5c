"""``python -m tests.goldens [--only describe] PATH…``: compares Penstock with recorded cases.

A path is a case or a folder of cases. Prints one line for each case that differs, with its first difference, and ends
with "N of M cases equal". Exit status 0 only if all are, 2 if there is none.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.goldens.case import Case, compare_topology, files, read

#: Returns the first difference of a case from its recording, None if there is none.
Comparison = Callable[[Case], str | None]


def comparisons(only: str | None) -> dict[str, Comparison]:
    """Return the comparisons by name, in order; only the requested one, if any."""
    found: dict[str, Comparison] = {"describe": compare_topology}
    if only != "describe":
        from tests.goldens.compare import COMPARISONS

        found |= COMPARISONS
    return found if only is None else {only: found[only]}


def compare(case: Case, parts: dict[str, Comparison]) -> str | None:
    """Return the first difference of a case; an unexpected exception counts too."""
    for comparison in parts.values():
        try:
            difference = comparison(case)
        except Exception as error:  # noqa: BLE001 - one broken case must not hide the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            difference = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        if difference is not None:
            return difference
    return None


def main(arguments: list[str] | None = None) -> int:
    """Compare cases; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.goldens", description="Compare Penstock with recorded cases."
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a case, or a folder of cases")
    parser.add_argument("--only", help="compare only this part, e.g. describe")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)  # cases fail on purpose
    parts = comparisons(options.only)
    total = equal = 0
    for path in files(options.paths):
        difference = compare(read(path), parts)
        total += 1
        equal += difference is None
        if difference is not None:
            print(f"{path.stem}: {difference}", flush=True)
    print(f"{equal} of {total} cases equal")
    return 2 if not total else 0 if equal == total else 1


if __name__ == "__main__":
    sys.exit(main())

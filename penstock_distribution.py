"""The distribution that installs Penstock, and what may be wrong with an installation.

Python packages of different distributions may have one name; installed side by side, the files of the later one
overwrite those of the earlier one. Outside the package, whose __init__.py may be the other distribution's.
"""

from __future__ import annotations

import os
import sys
from functools import cache

NAME = "penstock-streams"
_PACKAGE = b"penstock/__init__.py,"


class DistributionConflictError(ImportError):
    """Another distribution has installed a package named ``penstock`` over Penstock's, or under it."""


class MissingKernelError(ImportError):
    """The compiled kernel, without which Penstock does not run, is not built for this Python."""

    def __init__(self) -> None:
        place = os.path.dirname(os.path.abspath(__file__))
        super().__init__(
            f"Penstock's compiled kernel is not built for {sys.executable} (Python {sys.version.split()[0]}): install "
            f"Penstock again there, with `python -m pip install --force-reinstall --no-cache-dir {NAME}` or, in a "
            "clone, `python -m pip install -e .`; see docs/installation.md."
            if os.path.isdir(place)
            else f"Penstock was loaded from {place}, and a zip (--py-files) cannot carry compiled code: install "
            f"{NAME}[spark] for the driver and on the workers, or send a virtual environment with --archives; see "
            "docs/spark.md, On a cluster."
        )


@cache
def version() -> str:
    """Return the installed version, which comes from the tag in git; 0+unknown if Penstock is not installed."""
    from importlib import metadata  # takes longer than the rest of this module, and few processes need it

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "0+unknown"


def check_distributions(folder: str) -> None:
    """Raise DistributionConflictError if another distribution installed a package ``penstock`` into a folder.

    It reads the distributions' lists of files: a few milliseconds for a hundred of them, nothing in a checkout.
    """
    others = [name for name in _owners(folder) if name.replace("_", "-").lower() != NAME]
    if others:
        names = " and ".join(sorted(others))
        raise DistributionConflictError(
            f"{names} has installed another package named penstock into {folder}, where {NAME} has installed its own: "
            f"one overwrites the other. Run: pip uninstall --yes {' '.join(sorted(others))} {NAME}; "
            f"pip install {NAME}, or use one virtual environment for each."
        )


def _owners(folder: str) -> list[str]:
    """Return the distributions that list a package ``penstock`` among their files."""
    if not os.path.isdir(folder):  # a zip, which is refused later; see pipeline.session.spark_session
        return []
    owners = []
    for entry in os.scandir(folder):
        record = os.path.join(entry.path, "RECORD")
        if entry.name.endswith(".dist-info") and os.path.isfile(record):
            with open(record, "rb") as file:
                files = file.read()
            if files.startswith(_PACKAGE) or b"\n" + _PACKAGE in files:
                owners.append(entry.name.partition("-")[0])
    return owners

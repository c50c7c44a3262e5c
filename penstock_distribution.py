"""The distribution that installs Penstock, and a check that no other one has put its package ``penstock`` there.

Python packages of different distributions may have one name; installed side by side, the files of the later one
overwrite those of the earlier one. Outside the package, whose __init__.py may be the other distribution's.
"""

from __future__ import annotations

import os
from functools import cache

NAME = "penstock-streams"
_PACKAGE = b"penstock/__init__.py,"


class DistributionConflictError(ImportError):
    """Another distribution has installed a package named ``penstock`` over Penstock's, or under it."""


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
    if not os.path.isdir(folder):  # the zip that Spark's executors have
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

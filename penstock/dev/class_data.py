"""Archives of a JVM's loaded classes, which later JVMs map instead of loading and verifying the classes again.

A JVM writes an archive when it exits (class-data sharing, JEP 350). It ignores an archive that does not match its
version, its class path or the jars' modification times.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

from penstock.pipeline.java.jar_lock import cache_directory

logger = logging.getLogger(__name__)

SUFFIX = ".jsa"
KEY_DIGITS = 16
WRITE_OPTION = "-XX:ArchiveClassesAtExit="
#: Suppresses a warning for each of some dozen classes that cannot be archived.
QUIET_OPTION = "-Xlog:cds=error"


class ClassDataArchive:
    """The archive for one Java and one class path, in the user's cache. name: of the jars, e.g. ``kafka-4.4.0``."""

    def __init__(self, name: str, java: Path, class_path: str) -> None:
        files = [java.resolve(), *map(Path, class_path.split(os.pathsep))]
        seen = "".join(f"{file} {(stat := file.stat()).st_size} {stat.st_mtime_ns}\n" for file in files)
        self._file = _folder() / f"{name}-{hashlib.sha256(seen.encode()).hexdigest()[:KEY_DIGITS]}{SUFFIX}"

    def using(self) -> list[str]:
        """Return the JVM's option to use the archive, if there is one."""
        return [f"-XX:SharedArchiveFile={self._file}"] if self._file.exists() else []

    def using_or_writing(self, directory: Path) -> list[str]:
        """Return the JVM's option to use the archive, or to write it to directory, for keep_archives."""
        return self.using() or [f"{WRITE_OPTION}{directory / self._file.name}", QUIET_OPTION]


def writes_archive(command: list[str]) -> bool:
    """Return whether a JVM with this command line writes an archive when it exits."""
    return any(word.startswith(WRITE_OPTION) for word in command)


def keep_archives(directory: Path) -> None:
    """Move the archives that a JVM has written to directory into the user's cache, where they replace older ones."""
    folder = _folder()
    for written in directory.glob(f"*{SUFFIX}"):
        part = folder / f"{written.name}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(written, part)
            for older in folder.glob(f"{written.stem[:-KEY_DIGITS]}*{SUFFIX}"):
                older.unlink(missing_ok=True)
            part.replace(folder / written.name)
        except OSError as error:
            logger.warning("The next start will take longer than it could: cannot write to %s: %s", folder, error)


def _folder() -> Path:
    return cache_directory() / "class-data"

"""Archives of the classes that a JVM has loaded: its next starts map them instead of reading and checking them again.

The JVM writes an archive at its end (class-data sharing, JEP 350). It ignores one that does not fit its version, its
class path or the jars' times.
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
#: Without a warning for each of some dozen classes that cannot be archived.
QUIET_OPTION = "-Xlog:cds=error"


class ClassDataArchive:
    """The archive of one Java and one class path, in the user's cache; name: what the jars are, as ``kafka-4.4.0``."""

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
    """Return whether a JVM with this command line writes an archive at its end."""
    return any(word.startswith(WRITE_OPTION) for word in command)


def keep_archives(directory: Path) -> None:
    """Move what a JVM that has ended cleanly wrote to directory into the user's cache, in place of older ones."""
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

"""Jars pinned in a lock file, fetched once into the user's cache: the dev broker's, the benchmark's, Spark's connector.

A lock file has one line per jar: ``name version bytes sha256 path``, with the path as in every Maven repository.
To update one, let Maven lay out what it resolves (``mvn dependency:copy-dependencies -Dmdep.useRepositoryLayout=true``)
and describe that folder with ``python -m penstock.pipeline.java.jar_lock FOLDER``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from penstock.topology.errors import PenstockError

#: The repository of the jars, unless this environment variable names a mirror with the same layout.
REPOSITORY_VARIABLE = "PENSTOCK_MAVEN_URL"
DEFAULT_REPOSITORY = "https://repo1.maven.org/maven2"

ATTEMPTS = 5  # attempts per jar; a broken connection resumes where it stopped
RETRY_PAUSE_SECONDS = 0.5  # before the second attempt, doubled for each further one
CONNECT_TIMEOUT_SECONDS = 30.0  # also the longest silence during a download
PARALLEL_DOWNLOADS = 8  # most jars are small, so round trips dominate
CHUNK_BYTES = 256 * 1024
TEMPORARY_REFUSALS = frozenset({408, 429})  # request time-out, too many requests
PROGRESS_AFTER_SECONDS = 1.0  # a progress bar for less would only flicker


class JarError(PenstockError):
    """A jar of a lock file is not available: the message names the jar, its address and the fix."""


class _InterruptedDownloadError(Exception):
    """The connection broke, or the repository was busy: worth another attempt."""


class LockedJar(NamedTuple):
    """One line of a lock file. path is relative to the repository and to the cache."""

    name: str
    version: str
    size: int
    sha256: str
    path: str


def cache_directory() -> Path:
    """Return Penstock's folder in the user's cache: ``$XDG_CACHE_HOME/penstock``, otherwise ``~/.cache/penstock``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def read_lock(file: Path) -> list[LockedJar]:
    """Read a lock file; raises JarError with the invalid line."""
    jars = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        text = line.partition("#")[0].split()
        if not text:
            continue
        if len(text) != 5 or not text[2].isdigit() or len(text[3]) != 64:
            raise JarError(f"{file}, line {number}: expected 'name version bytes sha256 path', found {line!r}")
        jars.append(LockedJar(text[0], text[1], int(text[2]), text[3], text[4]))
    return jars


def fetch_jars(jars: Sequence[LockedJar], cache: Path | None = None, repository: str | None = None) -> list[Path]:
    """Return the jars' files, downloading missing ones; every file's sha256 is checked, even of cached ones.

    cache: the folder for them, by default ``jars`` in cache_directory(). repository: the base address, by default
    $PENSTOCK_MAVEN_URL or Maven Central. Several processes may call this at once: they wait for each other.
    Raises JarError.
    """
    cache = cache or cache_directory() / "jars"
    base = (repository or os.environ.get(REPOSITORY_VARIABLE) or DEFAULT_REPOSITORY).rstrip("/")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / ".lock"):
            missing = [jar for jar in jars if not _is_good(cache / jar.path, jar)]
            if missing:
                _download_all(missing, cache, base)
    except OSError as error:
        hint = ": free some space" if error.errno == errno.ENOSPC else ""
        raise JarError(f"cannot write jars into {cache}: {error.strerror}{hint}") from error
    return [cache / jar.path for jar in jars]


def describe(folder: Path) -> Iterator[str]:
    """Yield a lock file's lines for all jars in a folder that has a Maven repository's layout."""
    for file in sorted(folder.rglob("*.jar")):
        path = file.relative_to(folder)
        name, version = path.parts[-3], path.parts[-2]
        yield f"{name} {version} {file.stat().st_size} {_sha256(file)} {path.as_posix()}"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _is_good(file: Path, jar: LockedJar) -> bool:
    return file.is_file() and file.stat().st_size == jar.size and _sha256(file) == jar.sha256


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _download_all(jars: Sequence[LockedJar], cache: Path, base: str) -> None:
    with _progress(sum(jar.size for jar in jars)) as progress, ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        futures = [pool.submit(_download, jar, cache, base, progress) for jar in jars]
        try:
            for future in futures:
                future.result()
        except BaseException:
            # Even after Ctrl-C, running downloads stop at their next bytes and keep their data for another call.
            progress.cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise


class _Progress:
    """Receives the number of downloaded bytes of a path; shows a bar once the download takes a while."""

    def __init__(self, bar: Progress, total: int) -> None:
        self.cancelled = threading.Event()
        self._bar = bar
        self._task = bar.add_task("jars", total=total)
        self._started = time.monotonic()
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def report(self, path: str, size: int) -> None:
        """Record progress; raises JarError once the downloads are canceled."""
        if self.cancelled.is_set():
            raise JarError(f"the download of {path} was cancelled")
        with self._lock:
            self._done[path] = size
            self._bar.update(self._task, completed=sum(self._done.values()))
            if time.monotonic() - self._started >= PROGRESS_AFTER_SECONDS:
                self._bar.start()


@contextmanager
def _progress(total: int) -> Iterator[_Progress]:
    columns = (TextColumn("Fetching jars"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    try:
        yield _Progress(bar, total)
    finally:
        bar.stop()


def _download(jar: LockedJar, cache: Path, base: str, progress: _Progress) -> None:
    target = cache / jar.path
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    address = f"{base}/{jar.path}"
    problem = "no attempt was made"
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(RETRY_PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            _download_rest(address, part, jar, progress)
        except _InterruptedDownloadError as error:
            problem = str(error)
            continue
        if part.stat().st_size < jar.size:
            problem = f"the connection broke after {part.stat().st_size} of {jar.size} bytes"
            continue
        if _is_good(part, jar):
            part.replace(target)
            return
        problem = f"the download does not have size {jar.size} and sha256 {jar.sha256} of the lock file"
        part.unlink()
    raise JarError(
        f"cannot fetch {jar.name} {jar.version} from {address}: {problem}. "
        f"Set {REPOSITORY_VARIABLE} to a mirror that can be reached, or put the file at {target}"
    )


def _download_rest(address: str, part: Path, jar: LockedJar, progress: _Progress) -> None:
    """Append the missing bytes to the part file."""
    have = part.stat().st_size if part.exists() else 0
    if have >= jar.size:
        return
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_SECONDS) as response:
            resumed = have > 0 and response.status == http.HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if resumed else "wb", buffering=0) as stream:  # chunks are large already
                while chunk := response.read(CHUNK_BYTES):
                    stream.write(chunk)
                    progress.report(jar.path, stream.tell())
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        if error.code < 500 and error.code not in TEMPORARY_REFUSALS:
            raise JarError(
                f"cannot fetch {jar.name} {jar.version}: {address} answers {error.code} {error.reason}"
            ) from error
        raise _InterruptedDownloadError(f"{error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _InterruptedDownloadError(str(getattr(error, "reason", error))) from error


if __name__ == "__main__":
    for line in describe(Path(sys.argv[1])):
        print(line)

"""Jars are fetched once, complete, and with the checksums of the lock file; a real HTTP server is the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.pipeline.java import jar_lock
from penstock.pipeline.java.jar_lock import JarError, LockedJar, describe, fetch_jars, read_lock
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Repository(ThreadingHTTPServer):
    """Serves ``files`` with ranges; cuts off the first ``cuts`` responses half-way, and records the requests."""

    daemon_threads = False  # closing the server waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts = 0
        self.busy = 0
        self.requests: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        path, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.server.requests.append((path, wanted))
        if self.server.busy:
            self.server.busy -= 1
            self.send_error(503)
        elif path not in self.server.files:
            self.send_error(404)
        else:
            self._send(self.server.files[path], int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0)

    def _send(self, content: bytes, start: int) -> None:
        rest = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setattr(jar_lock, "RETRY_PAUSE_SECONDS", 0.001)
    with Repository() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def jar(name: str, content: bytes = CONTENT) -> LockedJar:
    return LockedJar(name, "1.0", len(content), hashlib.sha256(content).hexdigest(), f"org/{name}/1.0/{name}-1.0.jar")


def test_only_files_missing_from_the_cache_are_fetched(repository: Repository, tmp_path: Path) -> None:
    jars = [jar("a"), jar("b", b"b" * 10), jar("c", b"c")]
    repository.files = {jars[0].path: CONTENT, jars[1].path: b"b" * 10, jars[2].path: b"c"}
    files = fetch_jars(jars, tmp_path, repository.address)
    assert [file.read_bytes() for file in files] == [CONTENT, b"b" * 10, b"c"]
    assert len(repository.requests) == 3
    files[1].write_bytes(b"x" * 10)
    assert fetch_jars(jars, tmp_path, repository.address)[1].read_bytes() == b"b" * 10
    assert repository.requests[3:] == [(jars[1].path, None)]


def test_a_broken_download_resumes_where_it_stopped(repository: Repository, tmp_path: Path) -> None:
    wanted = jar("a")
    repository.files = {wanted.path: CONTENT}
    repository.cuts = 2
    assert fetch_jars([wanted], tmp_path, repository.address)[0].read_bytes() == CONTENT
    half, three_quarters = len(CONTENT) // 2, len(CONTENT) * 3 // 4
    ranges = [wanted for _, wanted in repository.requests]
    assert ranges == [None, f"bytes={half}-", f"bytes={three_quarters}-"]


def test_the_partial_file_of_an_earlier_run_is_used(repository: Repository, tmp_path: Path) -> None:
    wanted = jar("a")
    repository.files = {wanted.path: CONTENT}
    part = tmp_path / f"{wanted.path}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:1000])
    assert fetch_jars([wanted], tmp_path, repository.address)[0].read_bytes() == CONTENT
    assert repository.requests == [(wanted.path, "bytes=1000-")]


def test_a_busy_repository_is_retried(repository: Repository, tmp_path: Path) -> None:
    wanted = jar("a")
    repository.files = {wanted.path: CONTENT}
    repository.busy = 3
    assert fetch_jars([wanted], tmp_path, repository.address)[0].read_bytes() == CONTENT


def test_bytes_that_differ_from_the_lock_file_are_refused(repository: Repository, tmp_path: Path) -> None:
    wanted = jar("a")
    repository.files = {wanted.path: CONTENT[:-1] + b"!"}
    with pytest.raises(JarError, match=r"a 1\.0 .*sha256"):
        fetch_jars([wanted], tmp_path, repository.address)
    assert not list(tmp_path.rglob("*.jar"))


def test_a_missing_jar_is_reported_at_once(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(JarError, match=r"a 1\.0: http://127.*/org/a/1\.0/a-1\.0\.jar answers 404"):
        fetch_jars([jar("a")], tmp_path, repository.address)
    assert len(repository.requests) == 1


def test_the_error_for_an_unreachable_repository_says_what_to_do(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jar_lock.REPOSITORY_VARIABLE, "http://127.0.0.1:1/")
    with pytest.raises(JarError, match=r"http://127\.0\.0\.1:1/org/a.*refused.*PENSTOCK_MAVEN_URL"):
        fetch_jars([jar("a")], tmp_path)


def test_a_full_disk_is_named(repository: Repository, tmp_path: Path) -> None:
    """/dev/full is a device without space; the partial file is a link to it."""
    wanted = jar("a")
    repository.files = {wanted.path: CONTENT}
    part = tmp_path / f"{wanted.path}.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    with pytest.raises(JarError, match="No space left on device: free some space"):
        fetch_jars([wanted], tmp_path, repository.address)


def test_two_processes_download_once(repository: Repository, tmp_path: Path) -> None:
    wanted = jar("a")
    repository.files = {wanted.path: CONTENT}
    program = (
        "import sys; from pathlib import Path; from penstock.pipeline.java.jar_lock import LockedJar, fetch_jars\n"
        "fetch_jars([LockedJar(sys.argv[2], '1.0', int(sys.argv[3]), *sys.argv[4:6])], Path(sys.argv[1]))"
    )
    arguments = [str(tmp_path), wanted.name, str(wanted.size), wanted.sha256, wanted.path]
    environment = {**os.environ, jar_lock.REPOSITORY_VARIABLE: repository.address}
    command = [sys.executable, "-c", program, *arguments]
    both = [subprocess.Popen(command, env=environment, cwd=ROOT) for _ in range(2)]
    assert [process.wait(PATIENCE_SECONDS) for process in both] == [0, 0]
    assert repository.requests == [(wanted.path, None)]


def test_a_lock_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "org" / "x" / "lib" / "2.1" / "lib-2.1.jar"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    lock = tmp_path / "x.lock"
    lock.write_text("# a comment\n\n" + "\n".join(describe(tmp_path)) + "\n")
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert read_lock(lock) == [LockedJar("lib", "2.1", len(CONTENT), digest, "org/x/lib/2.1/lib-2.1.jar")]


def test_the_error_names_a_malformed_line(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("# fine\nlib 2.1 many abc org/lib.jar\n")
    with pytest.raises(JarError, match=r"x\.lock, line 2: expected .*lib 2\.1 many"):
        read_lock(lock)


@pytest.mark.parametrize("lock", sorted(ROOT.glob("**/*.lock")), ids=lambda path: path.name)
def test_the_lock_files_of_the_repository_are_valid(lock: Path) -> None:
    jars = read_lock(lock)
    assert len({jar.path for jar in jars}) == len(jars)
    for entry in jars:
        file = f"{entry.name}-{entry.version}"
        endings = (f"/{file}.jar", f"/{file}-all.tar.gz")  # the latter: a server with all its jars
        assert entry.path.endswith(tuple(f"/{entry.name}/{entry.version}{ending}" for ending in endings))
        assert "://" not in entry.path

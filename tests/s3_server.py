"""A real S3 server for tests: moto's, in another process, which keeps objects in memory."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS, eventually

BUCKET = "penstock-tests"


@dataclass(frozen=True)
class S3Server:
    """uri: of a new bucket. port: on 127.0.0.1."""

    port: int
    uri: str = f"s3://{BUCKET}/state"

    def environment(self, port: int | None = None) -> Mapping[str, str]:
        """Return what a client needs in its environment. port: of a proxy before the server."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
        }


@contextmanager
def s3_server(log: Path) -> Iterator[S3Server]:
    """Run a server with a bucket."""
    server = S3Server(free_port())
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(server.port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            eventually(lambda: process.poll() is None and _creates_bucket(server), "the S3 server has a bucket")
            yield server
        finally:
            process.kill()


def _creates_bucket(server: S3Server) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/{BUCKET}", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False

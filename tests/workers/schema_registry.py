"""A real schema registry for tests, and a proxy in front of it, with TLS and a password, that can be closed."""

from __future__ import annotations

import base64
import http.client
import ssl
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from penstock.pipeline.java.jar_lock import fetch_jars, read_lock
from penstock.pipeline.java.java_runtime import find_java
from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS, eventually

LOCK = Path(__file__).with_name("apicurio.lock")
USER = "orders:secret"


class RegistryServer:
    """A process of Apicurio Registry, which keeps its schemas in memory."""

    def __init__(self, folder: Path) -> None:
        with tarfile.open(fetch_jars(read_lock(LOCK))[0]) as archive:
            archive.extractall(folder)  # verified by its SHA-256
        (jar,) = folder.glob("*-runner.jar")
        self.port = free_port()
        options = ("-Xmx512m", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}")
        log = folder / "log"
        with log.open("w") as file:
            self._process = subprocess.Popen([find_java(), *options, "-jar", jar], cwd=folder, stdout=file, stderr=file)
        try:
            eventually(self._answers, log.read_text, PATIENCE_SECONDS)
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the registry has ended"
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("GET", "/apis/ccompat/v7/subjects")
            return connection.getresponse().status == 200
        except ConnectionRefusedError:
            return False
        finally:
            connection.close()

    def close(self) -> None:
        """Terminate the process."""
        self._process.kill()
        self._process.wait()


class Door:
    """Forwards requests to a registry while it is open; responds with 503 while it is shut.

    requests: method and path of each request. certificate: a folder with a key and its certificate, for TLS. password:
    if True, clients must authenticate as USER.
    """

    def __init__(self, registry: int, certificate: Path | None = None, password: bool = False) -> None:
        self.is_open = True
        self.requests: list[str] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                door.requests.append(f"{self.command} {self.path}")
                expected = f"Basic {base64.b64encode(USER.encode()).decode()}"
                if not door.is_open:
                    status, data = 503, b"shut"
                elif password and self.headers.get("Authorization") != expected:
                    status, data = 401, b'{"error_code": 401, "message": "who are you?"}'
                else:
                    status, data = self.passed_on(body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

            def passed_on(self, body: bytes) -> tuple[int, bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", registry, timeout=PATIENCE_SECONDS)
                headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                connection.request(self.command, f"/apis/ccompat/v7{self.path}", body or None, headers)
                answer = connection.getresponse()
                try:
                    return answer.status, answer.read()
                finally:
                    connection.close()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'' if certificate is None else 's'}://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

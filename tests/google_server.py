"""A server of Google's cloud storage for tests: its XML API in front of a real S3 server.

The emulators of Google's storage do not know the part of its XML API that obstore uses: lists and preconditions. This
API is S3's but for tokens, preconditions by generation, and deletes of missing objects
(https://cloud.google.com/storage/docs/xml-api/reference-headers); these are translated here.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from tests.s3_server import BUCKET, S3Server, s3_server
from tests.waiting import PATIENCE_SECONDS

#: Any signature: the S3 server does not check it, but refuses to change an object without one.
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
PASSED_BACK = ("content-type", "content-length", "etag", "last-modified", "accept-ranges", "content-range")


class GoogleServer:
    """A server with a bucket. uri: of a folder in it."""

    def __init__(self, port: int) -> None:
        self.uri = f"gs://{BUCKET}/state"
        self._key = json.dumps(
            {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True}
            | dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        )

    def environment(self) -> Mapping[str, str]:
        """Return what a client needs in its environment."""
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": self._key}


@contextmanager
def google_server(log: Path) -> Iterator[GoogleServer]:
    """Run a server with a bucket."""
    with s3_server(log) as s3, ThreadingHTTPServer(("127.0.0.1", 0), _handler(s3)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield GoogleServer(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def _handler(s3: S3Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: self.headers[name] for name in ("Content-Type", "Range") if name in self.headers}
            if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
                assert generation == "0"  # there must be no object yet
                headers["If-None-Match"] = "*"
            if self.command == "DELETE" and self.ask("HEAD", b"", {})[0].status == http.client.NOT_FOUND:
                self.reply(http.client.NOT_FOUND, {"Content-Length": "0"}, b"")
                return
            response, data = self.ask(self.command, body, headers)
            found = {name: value for name, value in response.getheaders() if name.lower() in PASSED_BACK}
            self.reply(response.status, {"Content-Length": str(len(data))} | found, data)

        def ask(self, method: str, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
            path, mark, query = self.path.partition("?")
            behind = http.client.HTTPConnection("127.0.0.1", s3.port, timeout=PATIENCE_SECONDS)
            try:
                # Google's clients quote more of a name than the S3 server understands.
                behind.request(method, quote(unquote(path)) + mark + query, body, headers | {"Authorization": SIGNED})
                response = behind.getresponse()
                return response, response.read()
            finally:
                behind.close()

        def reply(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815 - http.server finds them by these names

        def log_message(self, format: str, *arguments: object) -> None:
            pass  # the S3 server has a log

    return Handler

"""A server of Google's cloud storage for tests: its XML API in front of a real S3 server.

The emulators of Google's storage do not know the part of its XML API that obstore uses: lists and preconditions. This
API is S3's but for tokens, preconditions by generation, and deletes of missing objects
(https://cloud.google.com/storage/docs/xml-api/reference-headers); these are translated here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from typing_extensions import override

from tests.passing_handler import HOST, PassingHandler
from tests.s3_server import BUCKET, S3Server, s3_server

#: Any signature: the S3 server does not check it, but refuses to change an object without one.
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
NOT_FOUND = HTTPStatus.NOT_FOUND


class GoogleServer:
    """A server with a bucket. uri: of a folder in it."""

    def __init__(self, port: int) -> None:
        self.uri = f"gs://{BUCKET}/state"
        self._key = json.dumps(
            {"gcs_base_url": f"http://{HOST}:{port}", "disable_oauth": True}
            | dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        )

    def environment(self) -> Mapping[str, str]:
        """Return what a client needs in its environment."""
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": self._key}


@contextmanager
def google_server(log: Path) -> Iterator[GoogleServer]:
    """Run a server with a bucket."""
    with s3_server(log) as s3, ThreadingHTTPServer((HOST, 0), _handler(s3)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield GoogleServer(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def _handler(s3: S3Server) -> type[PassingHandler]:
    class Handler(PassingHandler):
        target = s3.port

        @override
        def handle_request(self) -> None:
            body, headers = self.body(), self.request_headers() | {"authorization": SIGNED}
            path, mark, query = self.path.partition("?")
            # Google's clients quote more of a name than the S3 server understands.
            where = quote(unquote(path)) + mark + query
            if (generation := headers.pop("x-goog-if-generation-match", None)) is not None:
                assert generation == "0"  # there must be no object yet
                headers["If-None-Match"] = "*"
            if self.command == "DELETE" and self.ask("HEAD", where, b"", headers)[0] == NOT_FOUND:
                self.reply(NOT_FOUND, {})
            else:
                self.reply(*self.ask(self.command, where, body, headers))

    return Handler

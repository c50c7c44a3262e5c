"""Names the native libraries in a bill of materials: ``python -m publish.sbom FROM_CYCLONEDX_PY > COMPLETE``.

cyclonedx-py sees Python packages only. librdkafka is inside of confluent-kafka's wheel, RocksDB inside of rocksdict's.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import confluent_kafka
from rocksdict import Rdict


def native_components() -> list[dict[str, Any]]:
    """Return CycloneDX components of the native libraries, with the versions that are loaded here."""
    return [
        _component("librdkafka", confluent_kafka.libversion()[0], "confluentinc/librdkafka", "v"),
        _component("rocksdb", rocksdb_version(), "facebook/rocksdb", "v"),
    ]


def rocksdb_version() -> str:
    """Return RocksDB's version, which only its log says. Raises ValueError if that says none."""
    with tempfile.TemporaryDirectory() as folder:
        Rdict(folder).close()
        found = re.search(r"RocksDB version: ([\d.]+)", (Path(folder) / "LOG").read_text())
    if found is None:
        raise ValueError("RocksDB's log does not say its version")
    return found[1]


def complete(bill: dict[str, Any]) -> dict[str, Any]:
    """Return a bill of materials with the native libraries added."""
    return bill | {"components": [*bill.get("components", []), *native_components()]}


def _component(name: str, version: str, repository: str, prefix: str) -> dict[str, Any]:
    purl = f"pkg:github/{repository}@{prefix}{version}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    json.dump(complete(json.loads(Path(sys.argv[1]).read_text())), sys.stdout, indent=2)

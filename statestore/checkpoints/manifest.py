"""Manifests: what a checkpoint of a task consists of, and where it is in the bucket.

    <uri>/<application.id>/<task id>/manifests/<offset>-<generation>-<taken>.json
    <uri>/<application.id>/<task id>/files/<SHA-256>-<generation>-<taken>

A manifest is written last, and only if no object has its name, so it is complete and never changes. Files are known by
their contents, so a file that is in the previous checkpoint, too, is not written again; a new object never has the name
of an old one, which may just be being deleted. The name of a manifest starts with the sum of
its changelog offsets: all checkpoints of the same changelogs are prefixes of the same logs, and the highest offset is
the newest state. It contains the generation of its writer in the group and its time, so two owners of a task never
write the same name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.topology.records import TaskId

#: The version of manifests; others are refused.
FORMAT = 1
#: The format of the files of stores: RocksDB, column families as in rocksdb_store.py.
STORE_FORMAT = "rocksdb-1"
MANIFESTS, FILES = "manifests", "files"
_OFFSET_DIGITS, _GENERATION_DIGITS, _TIME_DIGITS = 20, 10, 14
_SHA256_DIGITS = 64


class DamagedManifestError(Exception):
    """A manifest cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store. path: in the store's directory; sha256: of its contents; object: its name in the bucket."""

    path: str
    bytes: int
    sha256: str
    object: str


@dataclass(frozen=True, slots=True)
class StoredStore:
    """A store of a checkpoint. topic_id: of its changelog, in hex; offset: the next one to replay."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    files: Sequence[StoredFile] = ()


@dataclass(frozen=True, slots=True)
class InputPosition:
    """The position of the task in one of its inputs as of the checkpoint. time_ms: the partition's stream time."""

    topic: str
    topic_id: str | None
    partition: int
    offset: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint of a task, as of one commit.

    generation: of its owner in the group. time_ms: the owner's clock at the commit. facts: the description of its
    stores (topology_facts.facts_of); topology: a hash of the whole topology's. processor_metadata: the operators'
    times.
    """

    application_id: str
    task: str
    generation: int
    time_ms: int
    penstock_version: str
    topology: str
    facts: Mapping[str, Any]
    stores: Mapping[str, StoredStore]
    inputs: Sequence[InputPosition] = ()
    processor_metadata: Mapping[str, int] = field(default_factory=dict)
    store_format: str = STORE_FORMAT
    format: int = FORMAT

    @property
    def name(self) -> str:
        """The name of its object."""
        offset = sum(store.offset for store in self.stores.values())
        return (
            f"{offset:0{_OFFSET_DIGITS}d}-{self.generation:0{_GENERATION_DIGITS}d}-{self.time_ms:0{_TIME_DIGITS}d}.json"
        )

    @property
    def files(self) -> dict[str, StoredFile]:
        """Its files by SHA-256."""
        return {file.sha256: file for store in self.stores.values() for file in store.files}

    @property
    def total_bytes(self) -> int:
        """The size of its files, each counted once."""
        return sum(file.bytes for file in self.files.values())

    def encode(self) -> bytes:
        """Return its bytes: a JSON object with the manifest and its checksum."""
        content = asdict(self)
        return json.dumps({"sha256": checksum(content), "manifest": content}, indent=1).encode()


def checksum(content: object) -> str:
    """Return the SHA-256 of what can be JSON, in hex."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def decode(data: bytes) -> Manifest:
    """Return a manifest; raises DamagedManifestError if it is damaged, or of another version."""
    try:
        outer = json.loads(data)
        content = outer["manifest"]
        if content["format"] != FORMAT:
            raise DamagedManifestError(f"it has format {content['format']}, this version of Penstock reads {FORMAT}")
        if outer["sha256"] != checksum(content):
            raise DamagedManifestError("its checksum is wrong")
        stores = {
            name: StoredStore(**{**store, "files": tuple(_file(**file) for file in store["files"])})
            for name, store in content["stores"].items()
        }
        inputs = tuple(InputPosition(**position) for position in content["inputs"])
        manifest = Manifest(**{**content, "stores": stores, "inputs": inputs})
        TaskId.parse(manifest.task)
        for name in stores:
            _check_path(name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedManifestError(f"it is damaged: {error!r}") from error
    return manifest


def _file(path: str, bytes: int, sha256: str, object: str) -> StoredFile:
    _check_path(path)
    _check_path(object)
    if len(sha256) != _SHA256_DIGITS or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"{sha256!r} is no SHA-256")
    return StoredFile(path, int(bytes), sha256, object)


def _check_path(path: str) -> None:
    """Raise ValueError unless a name is that of an entry of a directory: it must not lead elsewhere."""
    if not path or path in (".", "..") or "/" in path or "\0" in path:
        raise ValueError(f"{path!r} is not the name of a file")

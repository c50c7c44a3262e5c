"""What a stream thread and the process of an upload or a load write to each other: a JSON object in each line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class UploadJob(TypedDict):
    """Upload the files in a directory. manifest: encoded; hashes: the file of FileHashes; keep: how many of them."""

    kind: str
    uri: str
    manifest: str
    directory: str
    hashes: str
    keep: int


class LoadJob(TypedDict):
    """Load the newest checkpoint that fits. changelogs: ChangelogNow by store; tried: names of checkpoints to skip."""

    kind: str
    uri: str
    application_id: str
    task: str
    directory: str
    changelogs: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, object]
    tried: list[str]
    now_ms: int


class LoadResult(TypedDict):
    """A checkpoint is in a directory. offsets: of the changelogs by store; time_ms: when it was taken."""

    name: str
    directory: str
    offsets: dict[str, int]
    total_bytes: int
    time_ms: int


class Report(TypedDict, total=False):
    """bytes: how many have arrived; uploaded: an Uploaded as a dict; loading, skipped: the name of a checkpoint;
    reason: why it is skipped.
    """

    bytes: int
    uploaded: dict[str, Any]
    loading: str
    total_bytes: int
    skipped: str
    reason: str | None
    loaded: LoadResult
    error: str

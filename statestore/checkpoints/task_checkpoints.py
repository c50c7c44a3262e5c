"""The checkpoints of one task in a bucket: listed, written, verified, loaded, deleted.

Checkpoints beyond those to keep are deleted, and files that no manifest names, but only GRACE_SECONDS after they were
superseded, or written: an upload takes at most half as long, and relies only on its own files and on those of the
checkpoint that was the newest when it began. So neither an upload in progress, which has files without a manifest, nor
one of a former owner loses a file to another process's deletion. All ages are by the bucket's clock, whatever the
hosts' clocks show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .bucket import Bucket, DamagedObjectError, MissingObjectError, StoredObject
from .file_hashes import FileHashes
from .manifest import FILES, MANIFESTS, DamagedManifestError, Manifest, StoredFile, decode

#: Seconds. How long everything is kept that is no longer needed; twice the time limit of an upload.
GRACE_SECONDS = 3_600.0


class UploadTooLateError(Exception):
    """An upload took longer than the files that it relies on are kept."""


@dataclass(frozen=True, slots=True)
class Found:
    """A manifest in the bucket. manifest: or why it cannot be read; modified: by the bucket's clock, in seconds."""

    name: str
    modified: float
    manifest: Manifest | str

    @property
    def topics(self) -> dict[str, str]:
        """The ids of its changelogs by topic; empty if it cannot be read."""
        stores = () if isinstance(self.manifest, str) else self.manifest.stores.values()
        return {store.topic: store.topic_id for store in stores}


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The result of an upload. sent_bytes: of the new files; written: False if another one has its name."""

    name: str
    total_bytes: int
    sent_bytes: int
    written: bool
    deleted: int


@dataclass(eq=False)
class TaskCheckpoints:
    """bucket: of the application. grace_seconds: see GRACE_SECONDS."""

    bucket: Bucket
    task: str
    grace_seconds: float = GRACE_SECONDS

    def found(self) -> Iterator[Found]:
        """Yield the manifests, the newest first, each read when it is its turn."""
        for each in reversed(self.bucket.objects(f"{self.task}/{MANIFESTS}")):
            yield self._read(each)

    def _read(self, each: StoredObject) -> Found:
        name = each.name.rpartition("/")[2]
        try:
            manifest = decode(self.bucket.read(each.name))
            if manifest.name != name or manifest.task != self.task:
                raise DamagedManifestError(f"it is the manifest of task {manifest.task}, {manifest.name}")
            return Found(name, each.modified, manifest)
        except (DamagedManifestError, MissingObjectError) as error:
            return Found(name, each.modified, str(error))

    def upload(
        self,
        manifest: Manifest,
        directory: Path,
        hashes: FileHashes,
        keep: int,
        elapsed: Callable[[], float],
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> Uploaded:
        """Write a checkpoint: the files of each store in ``directory/<store>``, then its manifest, without files yet.

        keep: how many checkpoints remain. elapsed: seconds since the upload began. Raises BucketError, and
        UploadTooLateError if it took so long that its files may be deleted.
        """
        topics = {store.topic: store.topic_id for store in manifest.stores.values()}
        newest = next((found for found in self.found() if found.topics == topics), None)
        there = {} if newest is None or isinstance(newest.manifest, str) else newest.manifest.files
        sizes = {each.name.rpartition("/")[2]: each.bytes for each in self.bucket.objects(f"{self.task}/{FILES}")}
        stores, missing = {}, {}
        for name, store in manifest.stores.items():
            files = []
            for path in sorted((directory / name).iterdir()):
                sha256, size = hashes.of(path), path.stat().st_size
                if sha256 in there and sizes.get(there[sha256].object) == size:  # else it is missing, or torn
                    target = there[sha256].object
                else:
                    target = f"{sha256}-{manifest.generation}-{manifest.time_ms}"
                    missing[target] = path
                files.append(StoredFile(path.name, size, sha256, target))
            stores[name] = replace(store, files=tuple(files))
        manifest = replace(manifest, stores=stores)
        sent = sum(path.stat().st_size for path in missing.values())
        self.bucket.upload({self._file(target): path for target, path in missing.items()}, on_bytes)
        limit = self.grace_seconds / 2
        if elapsed() > limit:
            raise UploadTooLateError(f"the upload took {elapsed():.0f} s, longer than {limit:.0f} s")
        name = f"{self.task}/{MANIFESTS}/{manifest.name}"
        written = self.bucket.create(name, manifest.encode())
        deleted = self.collect(keep, self.bucket.modified(name))
        return Uploaded(manifest.name, manifest.total_bytes, sent, written, deleted)

    def collect(self, keep: int, now: float) -> int:
        """Delete checkpoints beyond the newest ``keep``, and files without a manifest, after the grace period.

        now: the bucket's time. Returns the number of deleted objects. Checkpoints of deleted changelogs do not count.
        """
        files = self.bucket.objects(f"{self.task}/{FILES}")  # before the manifests: a new one may name the newest files
        found = list(self.found())
        obsolete = self._obsolete(found, keep, now)
        needed = {
            file.object
            for each in found
            if each.name not in obsolete and not isinstance(each.manifest, str)
            for file in each.manifest.files.values()
        }
        unused = [
            each.name
            for each in files
            if each.name.rpartition("/")[2] not in needed and now - each.modified > self.grace_seconds
        ]
        self.bucket.delete(f"{self.task}/{MANIFESTS}/{name}" for name in obsolete)  # first: none may lack a file
        self.bucket.delete(unused)
        return len(obsolete) + len(unused)

    def _obsolete(self, found: Sequence[Found], keep: int, now: float) -> set[str]:
        """Return the names of manifests that are no longer needed since the grace period. found: the newest first."""
        latest = max((each for each in found if each.topics), key=_written, default=None)
        current = [each for each in found if latest is not None and each.topics == latest.topics]
        kept = {each.name for each in current[: max(keep, 1)]}
        if latest is not None:
            kept.add(latest.name)
        # It is superseded since the next newer one of its changelogs was written, or since it was written itself.
        obsolete = set()
        for each in found:
            newer = [other.modified for other in current if other.name > each.name and other.modified >= each.modified]
            since = min(newer, default=each.modified)
            if each.name not in kept and now - since > self.grace_seconds:
                obsolete.add(each.name)
        return obsolete

    def load(self, manifest: Manifest, directory: Path, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Read the files of all stores into ``directory/<store>``, which must not exist, and check them.

        Raises MissingObjectError, DamagedObjectError or BucketError.
        """
        wanted: dict[Path, tuple[str, int, str]] = {}
        for name, store in manifest.stores.items():
            (directory / name).mkdir(parents=True)
            for file in store.files:
                wanted[directory / name / file.path] = (self._file(file.object), file.bytes, file.sha256)
        self.bucket.download(wanted, on_bytes)

    def problems(self, manifest: Manifest, scratch: Path) -> list[str]:
        """Return what is wrong with the files of a checkpoint: each is read into ``scratch`` and checked."""
        found = []
        for sha256, file in sorted(manifest.files.items()):
            path = scratch / sha256
            try:
                self.bucket.download({path: (self._file(file.object), file.bytes, sha256)}, lambda _: None)
            except (MissingObjectError, DamagedObjectError) as error:
                found.append(str(error))
            finally:
                path.unlink(missing_ok=True)
        return found

    def delete(self, names: Sequence[str]) -> None:
        """Delete checkpoints. Their files are collected by later uploads; without any checkpoint left, at once."""
        self.bucket.delete(f"{self.task}/{MANIFESTS}/{name}" for name in names)
        if not self.bucket.objects(f"{self.task}/{MANIFESTS}"):
            self.bucket.delete([each.name for each in self.bucket.objects(f"{self.task}/{FILES}")])

    def _file(self, target: str) -> str:
        return f"{self.task}/{FILES}/{target}"


def _written(each: Found) -> tuple[float, int]:
    """Return when a manifest was written; clocks of buckets may show seconds only."""
    return each.modified, 0 if isinstance(each.manifest, str) else each.manifest.time_ms

"""Where a replay of a task may begin: at a checkpoint, or at the beginning of its input.

A replay reads no changelogs, so a checkpoint needs other things than a restore does: it must be of these stores, and
its input must still have the records since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.statestore.checkpoints.fitness import changed, facts_of_stores, foreign
from penstock.statestore.checkpoints.manifest import Manifest
from penstock.statestore.checkpoints.task_checkpoints import Found
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from .cluster_topics import Bounds
from .replayed_task import ReplayedTask

#: skipped(name of a checkpoint, why it is not used)
Skipped = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Start:
    """A beginning. offsets: of the first record to read of each input; manifest: of the checkpoint, None without."""

    offsets: Mapping[TopicPartition, int]
    manifest: Manifest | None = None

    def __str__(self) -> str:
        at = ", ".join(f"offset {offset} of {partition}" for partition, offset in sorted(self.offsets.items()))
        return (
            f"the beginning of its input: {at}" if self.manifest is None else f"checkpoint {self.manifest.name}: {at}"
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a start is needed for. before: records from this offset on must not be processed yet; None: any start.

    named: the name of a checkpoint, None for all of them.
    """

    before: tuple[TopicPartition, int] | None = None
    named: str | None = None


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What a start is compared with. stores: the facts of the topology (topology_facts.facts_of); ids: of topics."""

    application_id: str
    stores: Mapping[str, Any]
    ids: Mapping[str, str]
    bounds: Mapping[TopicPartition, Bounds]


def starts(
    task: ReplayedTask, found: Iterable[Found], wanted: Wanted, facts: StartFacts, skipped: Skipped
) -> Iterator[Start]:
    """Yield the usable starts of a task, the nearest first. found: its checkpoints, the newest first.

    Raises StreamsError after the last one: the named checkpoint does not exist, or the input's first records are gone.
    """
    for each in found:
        if wanted.named not in (None, each.name):
            continue
        manifest = each.manifest
        if wanted.named is None and not isinstance(manifest, str) and _is_newer(manifest, wanted):
            continue
        reason = manifest if isinstance(manifest, str) else _unfit(task, manifest, wanted, facts)
        if reason is not None or isinstance(manifest, str):
            skipped(each.name, reason or "")
        else:
            yield Start(_offsets(task, manifest, facts), manifest)
    if wanted.named is not None:
        raise StreamsError(
            f"Task {task.task_id} has no checkpoint {wanted.named} that can be used: `penstock checkpoint list --task "
            f"{task.task_id}` shows its checkpoints."
        )
    yield from _beginnings(task, wanted, facts)


def _is_newer(manifest: Manifest, wanted: Wanted) -> bool:
    """Return whether a checkpoint was taken after the record that must not be processed yet."""
    before = wanted.before
    return before is not None and any(
        (each.topic, each.partition) == before[0] and each.offset > before[1] for each in manifest.inputs
    )


def _unfit(task: ReplayedTask, manifest: Manifest, wanted: Wanted, facts: StartFacts) -> str | None:
    """Return why a replay cannot begin at a checkpoint, None if it can."""
    reason = foreign(manifest, facts.application_id)
    if reason is not None:
        return reason
    missing = [name for name in task.topology.stores if name not in manifest.stores]
    if missing:
        return f"it does not have the state of {', '.join(missing)}, which is not on disk or is new"
    reason = changed_store(manifest, facts.stores)
    if reason is not None:
        return reason
    if _is_newer(manifest, wanted):
        return "it was taken after the record"
    return _unfit_input(manifest, facts)


def changed_store(manifest: Manifest, facts: Mapping[str, Any]) -> str | None:
    """Return why a topology cannot use the stores of a checkpoint, None if it can. facts: of the topology."""
    return changed(manifest, facts_of_stores(facts, manifest.stores.keys() & facts["stores"].keys()))


def _unfit_input(manifest: Manifest, facts: StartFacts) -> str | None:
    for position in manifest.inputs:
        partition = TopicPartition(position.topic, position.partition)
        bounds = facts.bounds.get(partition)
        if bounds is None:
            return f"it has read {partition}, which is no input of the task"
        if position.topic_id not in (None, facts.ids.get(position.topic)):
            return f"the input {position.topic} was deleted and created again since"
        if not bounds.first <= position.offset <= bounds.end:
            return (
                f"it ends at offset {position.offset} of {partition}, which has the offsets {bounds.first} to "
                f"{bounds.end}"
            )
    return None


def _offsets(task: ReplayedTask, manifest: Manifest, facts: StartFacts) -> dict[TopicPartition, int]:
    """Return where a checkpoint ends; an input that had no record by then is read from its beginning."""
    ended = {TopicPartition(each.topic, each.partition): each.offset for each in manifest.inputs}
    return {partition: ended.get(partition, facts.bounds[partition].first) for partition in task.inputs}


def _beginnings(task: ReplayedTask, wanted: Wanted, facts: StartFacts) -> Iterator[Start]:
    """Yield the beginning of the input; before it, for a task without state, the record itself."""
    firsts = {partition: facts.bounds[partition].first for partition in task.inputs}
    if not task.topology.stores:
        if wanted.before is not None:
            partition, offset = wanted.before
            yield Start({**firsts, partition: max(offset, firsts[partition])})
        yield Start(firsts)
        return
    for partition, first in firsts.items():
        if first > 0:
            raise StreamsError(
                f"Task {task.task_id} has no checkpoint that can be used, and its input {partition} begins at offset "
                f"{first}: earlier records were deleted, so its state cannot be computed again. Choose a later record, "
                "or let the application take checkpoints (penstock.checkpoint.uri)."
            )
    yield Start(firsts)

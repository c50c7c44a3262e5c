"""Whether a checkpoint may be used: a state that could be wrong is refused, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.topology.graph.topology_plan import Verdict, compare

from .manifest import STORE_FORMAT, Manifest

#: A checkpoint may be as old as this part of delete.retention.ms: the clocks of hosts and brokers may differ.
USABLE_PART = 0.9
#: A checkpoint from this many seconds in the future: the clock of a host is wrong, and ages mean nothing.
FUTURE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class ChangelogNow:
    """The changelog of a store, as of now. topic_id: in hex; first, end: its offsets; end is that of committed records.

    tombstones_ms: how long it keeps tombstones (delete.retention.ms), None if it is not compacted.
    """

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int
    tombstones_ms: int | None


def unfit(
    manifest: Manifest,
    changelogs: Mapping[str, ChangelogNow],
    application_id: str,
    facts: Mapping[str, object],
    modified: float,
    now: float,
) -> str | None:
    """Return why a checkpoint cannot be used, None if it can.

    changelogs: of the stores that the task has on disk, by store. facts: their description. modified: when the
    manifest was written, by the bucket's clock; now: by this host's; both in seconds.
    """
    reason = foreign(manifest, application_id)
    if reason is not None:
        return reason
    if manifest.stores.keys() != changelogs.keys():
        return f"it has the stores {', '.join(manifest.stores)}, the topology {', '.join(changelogs)}"
    reason = changed(manifest, facts)
    if reason is not None:
        return reason
    ages = now - modified, now - manifest.time_ms / 1000
    if min(ages) < -FUTURE_SECONDS:
        return f"it is {-min(ages):.0f} s from the future: the clock of this host or of its writer is wrong"
    for name, changelog in changelogs.items():
        reason = _unfit_store(manifest, name, changelog, max(ages))
        if reason is not None:
            return reason
    return None


def foreign(manifest: Manifest, application_id: str) -> str | None:
    """Return why a checkpoint is not one of this application and format, None if it is."""
    if manifest.application_id != application_id:
        return f"it belongs to the application {manifest.application_id}"
    if manifest.store_format != STORE_FORMAT:
        return f"its stores have the format {manifest.store_format}, not {STORE_FORMAT}"
    return None


def changed(manifest: Manifest, facts: Mapping[str, object]) -> str | None:
    """Return why a topology cannot use the stores of a checkpoint, None if it can. facts: see facts_of_stores."""
    found = [finding for finding in compare(manifest.facts, facts).findings if finding.verdict is not Verdict.SAFE]
    if found:
        return f"it is from another version of the topology: {found[0].subject}: {found[0].text}"
    if manifest.facts.get("version") != facts.get("version"):
        return "its description of the stores is of another version of Penstock"
    return None


def facts_of_stores(facts: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the description of some stores, for compare. facts: of their topology (topology_facts.facts_of)."""
    # The number of the sub-topology is in the name of the task; compare would look for its other parts.
    stores = {name: facts["stores"][name] for name in names}
    return {"version": facts["version"], "subtopologies": {}, "stores": stores, "internal_topics": {}}


def _unfit_store(manifest: Manifest, name: str, changelog: ChangelogNow, age: float) -> str | None:
    store = manifest.stores[name]
    if (store.topic, store.partition) != (changelog.topic, changelog.partition):
        return f"the store {name} has the changelog {changelog.topic}-{changelog.partition} now, not {store.topic}"
    if store.topic_id != changelog.topic_id:
        return f"the changelog {changelog.topic} was deleted and created again since"
    if not changelog.first <= store.offset <= changelog.end:
        return (
            f"it ends at offset {store.offset} of {changelog.topic}-{changelog.partition}, which has the committed "
            f"offsets {changelog.first} to {changelog.end}"
        )
    if changelog.tombstones_ms is not None and age * 1000 > changelog.tombstones_ms * USABLE_PART:
        return (
            f"it is {age:.0f} s old, and {changelog.topic} keeps tombstones for {changelog.tombstones_ms // 1000} s "
            "(delete.retention.ms): deleted keys could come back"
        )
    return None

"""Compares a topology with the one that created an application's state, before the new one may use that state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..serdes.shape_changes import Effect, shape_changes
from .topology_facts import FACTS_VERSION, Facts


class Verdict(IntEnum):
    """The consequence of a difference; with several differences the highest applies."""

    #: The application continues with its existing state.
    SAFE = 0
    #: The application continues after some stores have been restored from their changelogs.
    REBUILD = 1
    #: Records or state would be lost or misinterpreted.
    REFUSE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. subject: the store, topic or sub-topology; text: the difference and what to do."""

    verdict: Verdict
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All differences. rebuild: the stores whose files the new topology cannot use."""

    findings: tuple[Finding, ...]
    rebuild: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The overall verdict."""
        return max((finding.verdict for finding in self.findings), default=Verdict.SAFE)

    def summary(self) -> str:
        """Return the verdict in words."""
        if self.verdict is Verdict.REBUILD:
            return f"rebuild these stores: {', '.join(self.rebuild)}"
        return "refuse" if self.verdict is Verdict.REFUSE else "safe"


#: Properties that determine a store's binary format. A change makes the changelog unreadable or misinterpreted.
_BYTES = ("key_serde", "value_serde", "window_size_ms", "retain_duplicates")
#: Properties that affect the files only: the store can be restored from its changelog in the new format.
_ON_DISK = ("backend", "time_ordered", "segment_interval_ms", "plain_values", "keeps_headers", "is_dated")
#: User-defined serdes: a difference does not prove that the bytes differ.
_SERDES = ("key_serde", "value_serde")
_SAME_KEYS = ", and writes the same bytes for the same key, or rows are not found"
#: Pairs of kinds with the same changelog format but different files.
_SAME_CHANGELOG = (
    frozenset({"key_value", "timestamped_key_value"}),
    frozenset({"window", "timestamped_window"}),
)


_NOT_READ = (
    "the repartition topic is no longer read: its unprocessed records are lost. "
    "Keep its name (name=), or let the old version process all of its input first"
)

#: The result of topology_facts.internal_names.
Names = Mapping[str, Mapping[str, list[str]]]


def combined(plans: Iterable[Plan]) -> Plan:
    """Merge several comparisons of one topology, with each difference once."""
    plans = list(plans)
    findings = dict.fromkeys(finding for plan in plans for finding in plan.findings)
    return Plan(tuple(findings), tuple(sorted({store for plan in plans for store in plan.rebuild})))


def compare(old: Facts, new: Facts) -> Plan:
    """Return the differences of ``new``; both are results of facts_of (possibly through JSON)."""
    if old.get("version") != FACTS_VERSION:
        text = f"its description has version {old.get('version')}, this Penstock writes version {FACTS_VERSION}"
        return Plan((Finding(Verdict.SAFE, "topology", f"cannot be compared with the earlier one: {text}"),), ())
    findings = (*_stores(old, new), *_internal_topics(old, new), *_sinks(old, new), *_subtopologies(old, new))
    both = old["stores"].keys() & new["stores"].keys()
    rebuild = {finding.subject for finding in findings if finding.verdict is Verdict.REBUILD} & both
    return Plan(findings, tuple(sorted(rebuild)))


def _stores(old: Facts, new: Facts) -> Iterator[Finding]:
    gone = {name: store for name, store in old["stores"].items() if name not in new["stores"]}
    fresh = {name: store for name, store in new["stores"].items() if name not in old["stores"]}
    for name, store in gone.items():
        twin = next((other for other in fresh if _shape(fresh[other], new) == _shape(store, old)), None)
        if twin is not None:
            del fresh[twin]
            yield _renamed(name, twin)
        else:
            topic = store["changelog"]
            rest = f"; its changelog {topic} remains until you delete it" if topic else ""
            yield Finding(Verdict.SAFE, name, f"the store and its rows are removed{rest}")
    for name in fresh:
        yield Finding(Verdict.SAFE, name, "the store is new: it starts empty and receives records from now on")
    for name in sorted(old["stores"].keys() & new["stores"].keys()):
        yield from _store(name, old["stores"][name], new["stores"][name])


def _renamed(name: str, twin: str) -> Finding:
    return Finding(
        Verdict.REFUSE,
        name,
        f"the store is now called {twin}: it starts empty, and its input continues after the records that {name} "
        f'has processed. Keep the old name (store="{name}"); generated names change with each operator before them',
    )


def _shape(store: Mapping[str, object], facts: Facts) -> tuple[object, ...]:
    """Return the properties that a renamed store keeps."""
    sources = facts["subtopologies"].get(str(store["subtopology"]), {}).get("sources", ())
    outside = tuple(topic for topic in sources if topic not in facts["internal_topics"])
    return (outside, store["kind"], *(store[name] for name in _BYTES))


def _store(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[Finding]:
    kinds = {old["kind"], new["kind"]}
    if len(kinds) == 2 and kinds not in _SAME_CHANGELOG:
        yield Finding(
            Verdict.REFUSE,
            name,
            f"the store's kind was {old['kind']} and is {new['kind']}, which cannot read the existing rows. "
            "Give it another name",
        )
        return
    for field in _BYTES:
        if old[field] != new[field]:
            yield Finding(
                Verdict.REFUSE,
                name,
                f"{field} was {old[field]} and is {new[field]}: store and changelog have rows in the old format. "
                "Give the store another name, or reset the application",
            )
    yield from _serdes(name, old, new)
    yield from _changelog(name, old, new)
    old = {"keeps_headers": False, "ttl": None, "is_dated": False, **old}  # descriptions of earlier versions
    if old["keeps_headers"] and not new["keeps_headers"]:
        text = "the store has headers, which would be lost. Keep its builder with headers, or give it another name"
        yield Finding(Verdict.REFUSE, name, text)
        return
    changed = [field for field in ("kind", *_ON_DISK) if old[field] != new[field]]
    if changed:
        text = ", ".join(f"{field} was {old[field]} and is {new[field]}" for field in changed)
        yield _restored(name, new, text)
    elif old["subtopology"] != new["subtopology"]:
        text = f"it was in sub-topology {old['subtopology']} and is in {new['subtopology']}: its tasks have other ids"
        yield _restored(name, new, text)
    for field in ("retention_ms", "history_retention_ms"):
        if old[field] != new[field]:
            text = f"{field} was {old[field]} and is {new[field]}; an existing changelog keeps its settings"
            yield Finding(Verdict.SAFE, name, text)
    if old["ttl"] != new["ttl"] and old["is_dated"] == new["is_dated"]:
        text = f"ttl was {old['ttl']} and is {new['ttl']}: rows that are not written again keep the time of the old one"
        yield Finding(Verdict.SAFE, name, text)


def _serdes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings for serdes with the same name but other arguments or code."""
    for field in _SERDES:
        if old[field] != new[field] or f"{field}_code" not in old:  # reported already; or field unknown
            continue
        yield from _shapes(name, field, old, new)
        was, now = old[f"{field}_settings"], new[f"{field}_settings"]
        code = old[f"{field}_code"], new[f"{field}_code"]
        others = [setting for setting in sorted(was.keys() | now.keys()) if was.get(setting) != now.get(setting)]
        what = [f"has another {setting}" for setting in others]
        if all(code) and code[0] != code[1]:
            what.append("has other code")
        if what:
            yield Finding(
                Verdict.SAFE,
                name,
                f"{field} {new[field]} {' and '.join(what)}: make sure that it reads what the earlier version has "
                f"written{_SAME_KEYS if field == 'key_serde' else ''}. With a __repr__ that names its format, changes "
                "of the format are refused",
            )


def _shapes(name: str, field: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings for types with the same name, but other fields."""
    was, now = old.get(f"{field}_shape"), new.get(f"{field}_shape")
    if not was or not now:
        return
    for change in shape_changes(was, now, field.removesuffix("_serde"), is_key=field == "key_serde"):
        text = f"{change.path} of {new[field]} {change.text} ({change.effect.name.lower()})"
        if change.effect is Effect.COMPATIBLE:
            yield Finding(Verdict.SAFE, name, text)
        else:
            yield Finding(Verdict.REFUSE, name, f"{text}. Keep the field, or give it and {name} other names")


def _restored(name: str, new: Mapping[str, object], text: str) -> Finding:
    if new["changelog"] is None:
        return Finding(Verdict.REFUSE, name, f"{text}; the store has no changelog to be restored from")
    return Finding(Verdict.REBUILD, name, f"{text}; it is restored from {new['changelog']}")


def _changelog(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[Finding]:
    was, now = old["changelog"], new["changelog"]
    if was == now:
        return
    if now is None:
        text = f"the store no longer has a changelog: on hosts without its files it starts empty; {was} remains"
        yield Finding(Verdict.SAFE, name, text)
    else:
        text = f"its changelog was {was or 'none'} and is {now}, which lacks its rows. Give the store another name"
        yield Finding(Verdict.REFUSE, name, text)


def _internal_topics(old: Facts, new: Facts) -> Iterator[Finding]:
    before, after = old["internal_topics"], new["internal_topics"]
    for topic in sorted(before.keys() - after.keys()):
        yield Finding(Verdict.REFUSE, topic, _NOT_READ)
    for topic in sorted(after.keys() - before.keys()):
        yield Finding(Verdict.SAFE, topic, "the repartition topic is new")
    for topic in sorted(before.keys() & after.keys()):
        yield from _serdes(topic, before[topic], after[topic])
        for field in ("partitions", *_SERDES):
            if (was := before[topic][field]) != after[topic][field]:
                yield Finding(
                    Verdict.REFUSE,
                    topic,
                    f"{field} of the repartition topic was {was or 'derived'} and is {after[topic][field] or 'derived'}"
                    ": it may have unprocessed records. Give it another name once they are processed",
                )


#: What happens to rows when the offsets in a database do not fit any more.
_REPEATED = (
    "the task begins at the group's committed offsets, and rows after them are written again. After a clean stop there "
    "are none: then accept it"
)


def _sinks(old: Facts, new: Facts) -> Iterator[Finding]:
    """Yield findings for sinks outside of Kafka; descriptions of earlier versions, and of parts, have none."""
    if "sinks" not in old or "sinks" not in new:
        return
    before, after = old["sinks"], new["sinks"]
    fresh = {name: sink["place"] for name, sink in after.items() if name not in before}
    for name in sorted(before.keys() - after.keys()):
        place = before[name]["place"]
        twin = next((other for other, found in fresh.items() if found == place), None)
        if twin is None:
            yield Finding(Verdict.SAFE, name, f"the sink is removed; its rows and offsets remain: {place}")
            continue
        del fresh[twin]
        text = f"the sink is now called {twin}, and its offsets belong to its name: {_REPEATED}. Or keep it (name=)"
        yield Finding(Verdict.REFUSE, name, text)
    for name, place in sorted(fresh.items()):
        text = f"the sink is new: it writes to {place}, from the group's committed offsets on"
        yield Finding(Verdict.SAFE, name, text)
    for name in sorted(before.keys() & after.keys()):
        yield from _sink(name, before[name], after[name])


def _sink(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    if old["topics"] != new["topics"]:
        was, now = ", ".join(old["topics"]), ", ".join(new["topics"])
        text = f"the sink read {was} and reads {now}, and its offsets belong to the topic: {_REPEATED}"
        yield Finding(Verdict.REFUSE, name, text)
    if old["place"] != new["place"]:
        text = f"the sink wrote to {old['place']} and writes to {new['place']}; earlier rows stay where they are"
        yield Finding(Verdict.SAFE, name, text)


def compare_names(old: Names, new: Names) -> Plan:
    """Compare the names of internal topics, which is all that a streams group's broker knows of its topology.

    Both are results of topology_facts.internal_names.
    """
    return Plan(tuple(_gone_names(old, new)), ())


def compare_reads(reads: Mapping[str, list[str]], new: Names) -> Plan:
    """Compare the topics that running tasks read, by sub-topology, which is all that members on Java report.

    new: a result of topology_facts.internal_names.
    """
    findings = []
    for number, topics in reads.items():
        own = sorted([*new[number]["sources"], *new[number]["repartitions"]]) if number in new else []
        if topics != own:
            text = (
                f"in the running group it reads {', '.join(topics)}, in this topology {', '.join(own) or 'nothing'}. "
                "Members would get tasks of the other topology: stop all hosts before this version starts"
            )
            findings.append(Finding(Verdict.REFUSE, f"sub-topology {number}", text))
    return Plan(tuple(findings), ())


def _gone_names(old: Names, new: Names) -> Iterator[Finding]:
    before, after = _by_name(old, "changelogs"), _by_name(new, "changelogs")
    fresh = {topic: sources for topic, sources in after.items() if topic not in before}
    for topic in sorted(before.keys() - after.keys()):
        twin = next((other for other, sources in fresh.items() if sources == before[topic]), None)
        if twin is None:
            yield Finding(Verdict.SAFE, topic, "the store of this changelog is removed; it remains until you delete it")
        else:
            text = f"the changelog is now called {twin}: its store starts empty. Keep the store's old name"
            yield Finding(Verdict.REFUSE, topic, text)
    before, after = _by_name(old, "repartitions"), _by_name(new, "repartitions")
    for topic in sorted(before.keys() - after.keys()):
        yield Finding(Verdict.REFUSE, topic, _NOT_READ)
    if old != new:
        yield Finding(
            Verdict.SAFE,
            "group",
            "its topics differ, but a streams group keeps its topology while it has members. Stop all hosts "
            "before you start the new version on one",
        )


def _by_name(names: Names, kind: str) -> dict[str, list[str]]:
    """Return the internal topics of a kind with the external topics that their sub-topology reads."""
    return {topic: part["sources"] for part in names.values() for topic in part[kind]}


def _subtopologies(old: Facts, new: Facts) -> Iterator[Finding]:
    before, after = old["subtopologies"], new["subtopologies"]
    reads = [{topic for part in parts.values() for topic in _read(part)} for parts in (before, after)]
    for topic in sorted(reads[0] - reads[1] - old["internal_topics"].keys()):
        yield Finding(Verdict.SAFE, topic, "the topic is no longer read")
    for topic in sorted(reads[1] - reads[0] - new["internal_topics"].keys()):
        yield Finding(Verdict.SAFE, topic, "the topic is read from now on, starting as auto.offset.reset says")
    for number in sorted(before.keys() & after.keys()):
        one, other = before[number], after[number]
        if not set(_read(one)) & set(_read(other)):
            yield Finding(
                Verdict.SAFE,
                f"sub-topology {number}",
                "has another meaning now. Stop all hosts, and wait for session.timeout.ms, before you start the new "
                "version on one: tasks of both versions have the same ids, and static members keep theirs until then",
            )
        elif one["operators"] != other["operators"]:
            count = len(set(one["operators"]) ^ set(other["operators"]))
            text = (
                f"has other operators, or another order of them ({count} names differ); state does not depend on that"
            )
            yield Finding(Verdict.SAFE, f"sub-topology {number}", text)


def _read(part: Mapping[str, Any]) -> list[str]:
    return [*part["sources"], *part["patterns"]]

"""Differences between a streams group's topology, as described by its coordinator, and a member's topology.

The coordinator only reports that they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import NamedTuple

from .streams_values import InternalTopic, StreamsSubtopology, StreamsTopology


class _Subtopology(NamedTuple):
    """The comparable part of a sub-topology. settings: of the internal topics, by name."""

    topics: Mapping[str, frozenset[str]]
    settings: Mapping[str, Mapping[str, str]]


_NONE = _Subtopology({}, {})


def difference(described: SimpleNamespace, own: StreamsTopology) -> str:
    """Return sentences that name the differences, "" if the description shows none.

    The description has no co-partition groups. described: the topology in a StreamsGroupDescribe response.
    """
    there = {found.subtopology_id: _described(found) for found in described.subtopologies or ()}
    here = {str(found.subtopology): _own(found) for found in own.subtopologies}
    return " ".join(
        text
        for number in sorted(there.keys() | here.keys())
        for text in _differences(f"Sub-topology {number}", there.get(number, _NONE), here.get(number, _NONE))
    )


def _differences(name: str, there: _Subtopology, here: _Subtopology) -> Iterator[str]:
    for what in sorted(there.topics.keys() | here.topics.keys()):
        topics, own = there.topics.get(what, frozenset()), here.topics.get(what, frozenset())
        if topics != own:
            yield f"{name} {what} {_listed(topics)} in the group, {_listed(own)} in this topology."
    for topic in sorted(there.settings.keys() & here.settings.keys()):
        settings, own_settings = there.settings[topic], here.settings[topic]
        if settings != own_settings:
            both = settings.items() & own_settings.items()
            texts = (_pairs(settings.items() - both), _pairs(own_settings.items() - both))
            yield f"{name} has {topic} with {texts[0]} in the group, with {texts[1]} in this topology."


def _described(subtopology: SimpleNamespace) -> _Subtopology:
    internal = (subtopology.repartition_source_topics, subtopology.state_changelog_topics)
    return _subtopology(
        subtopology.source_topics,
        subtopology.repartition_sink_topics,
        *(
            {topic.name: {pair.key: pair.value for pair in topic.topic_configs} for topic in topics}
            for topics in internal
        ),
    )


def _own(subtopology: StreamsSubtopology) -> _Subtopology:
    def settings(topics: Iterable[InternalTopic]) -> dict[str, Mapping[str, str]]:
        return {topic.name: topic.config for topic in topics}

    return _subtopology(
        subtopology.source_topics,
        subtopology.repartition_sink_topics,
        settings(subtopology.repartition_source_topics),
        settings(subtopology.changelog_topics),
    )


def _subtopology(
    sources: Iterable[str],
    sinks: Iterable[str],
    repartition: Mapping[str, Mapping[str, str]],
    changelogs: Mapping[str, Mapping[str, str]],
) -> _Subtopology:
    topics = {
        "reads": frozenset([*sources, *repartition]),
        "writes the repartition topics": frozenset(sinks),
        "has the changelogs": frozenset(changelogs),
    }
    return _Subtopology(topics, {**repartition, **changelogs})


def _listed(topics: Iterable[str]) -> str:
    return ", ".join(sorted(topics)) or "nothing"


def _pairs(settings: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(settings)) or "other settings only"

"""The topics of an application on Spark: creates internal ones, and returns ids and partitions of all."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.admin import Admin, answered
from penstock.clients.cluster.topics import NO_ID
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.workers.group.assignment.topics_info import topics_infos
from penstock.workers.group.internal_topic_manager import InternalTopicManager
from penstock.workers.thread.client_supplier import KafkaClientSupplier

if TYPE_CHECKING:
    from ..checkpoint.checkpoint import Topics

#: Time limit for the brokers to list topics, in ms.
TIMEOUT_MS = 30_000


def make_topics_ready(config: StreamsConfig, built: Sequence[ProcessorTopology], changelogs: bool) -> Topics:
    """Create the internal topics, with or without changelogs; return all topics."""
    from ..checkpoint.checkpoint import Topics

    infos = topics_infos(config["application.id"], built)
    if not changelogs:
        none: frozenset[str] = frozenset()
        infos = {
            number: replace(info, changelog_topics={}, source_changelog_topics=none) for number, info in infos.items()
        }
    log = PrefixedLogger(__name__, "spark ")
    with closing(KafkaClientSupplier(config).get_admin(f"{config['application.id']}-spark-admin")) as admin:
        counts = InternalTopicManager(admin, config, SystemClock(), log).make_ready(infos)
        return Topics(counts, topic_ids(admin, counts))


def topic_ids(admin: Admin, topics: Collection[str]) -> dict[str, str]:
    """Return the ids of topics by name, in base64, without unknown ones. Raises BrokerUnavailableError.

    Brokers before 2.8 have no ids, and a broker may not know a new topic yet; a later start gets its id.
    """
    with answered("The topics' ids are not known"):
        found = admin.describe(topics, TIMEOUT_MS).topics
    ids = {name: topic.id for name, topic in found.items() if topic.id != NO_ID}
    return {name: base64.b64encode(topic_id).decode().rstrip("=") for name, topic_id in ids.items()}

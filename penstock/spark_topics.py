"""The topics of an application on Spark: internal ones are made, and all are known by id and partitions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from penstock.application_reset import TIMEOUT_SECONDS
from penstock.clients.clock import SystemClock
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.processor_topology import ProcessorTopology
from penstock.topology.streams_config import StreamsConfig
from penstock.workers.assignment.topics_info import topics_infos
from penstock.workers.client_supplier import KafkaClientSupplier
from penstock.workers.internal_topic_manager import InternalTopicManager

if TYPE_CHECKING:
    from penstock.pipeline.checkpoint import Topics

#: The topic id of brokers without topic ids: all bits zero.
NO_ID = ("None", "AAAAAAAAAAAAAAAAAAAAAA")


def make_topics_ready(config: StreamsConfig, built: Sequence[ProcessorTopology], changelogs: bool) -> Topics:
    """Make the internal topics, with the changelogs or without; return all topics."""
    from penstock.pipeline.checkpoint import Topics

    infos = topics_infos(config["application.id"], built)
    if not changelogs:
        none: frozenset[str] = frozenset()
        infos = {
            number: replace(info, changelog_topics={}, source_changelog_topics=none) for number, info in infos.items()
        }
    admin = KafkaClientSupplier(config).get_admin(f"{config['application.id']}-spark-admin")
    log = PrefixedLogger(__name__, "spark ")
    counts = InternalTopicManager(admin, config, SystemClock(), log).make_ready(infos)
    return Topics(counts, topic_ids(admin, counts))


def topic_ids(admin: AdminClient, topics: Collection[str]) -> dict[str, str]:
    """Return the ids of topics by name, as far as the brokers have them. Raises BrokerUnavailableError.

    Brokers before 2.8 have none, and one may not know a new topic yet: a later start finds its id.
    """
    ids = {}
    for name, answer in admin.describe_topics(TopicCollection(sorted(topics))).items():
        try:
            ids[name] = str(answer.result(TIMEOUT_SECONDS).topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise BrokerUnavailableError(f"The brokers did not describe {name}: {error.args[0].str()}") from error
    return {name: found for name, found in ids.items() if found not in NO_ID}

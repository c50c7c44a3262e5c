"""Kafka's APIs, one file for each, which names the versions that it serves. Other APIs are not served."""

from __future__ import annotations

from collections.abc import Mapping

from ..call import Served
from . import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
)

#: By API key.
SERVED: Mapping[int, Served] = {
    module.SERVED.api.key: module.SERVED
    for module in (
        *(produce, fetch, list_offsets, offset_for_leader_epoch, metadata, find_coordinator),
        *(join_group, sync_group, heartbeat, leave_group, describe_groups, list_groups, delete_groups),
        *(consumer_group_heartbeat, consumer_group_describe, streams_group_heartbeat, streams_group_describe),
        *(offset_commit, offset_fetch, txn_offset_commit),
        *(init_producer_id, add_partitions_to_txn, add_offsets_to_txn, end_txn),
        *(create_topics, delete_topics, create_partitions, delete_records),
        *(describe_client_quotas, alter_client_quotas),
        *(describe_acls, create_acls, delete_acls),
        *(describe_configs, incremental_alter_configs, describe_cluster),
        *(api_versions, sasl_handshake, sasl_authenticate),
    )
}

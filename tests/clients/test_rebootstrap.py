"""A broker that was removed from its cluster sends its clients back to bootstrap.servers (KIP-1102).

So does a broker at an address where another one, or another cluster, was before (KIP-1242).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.clients.cluster.cluster import Cluster
from penstock.clients.errors import ErrorCode, RetriableBrokerError, UnreachableError
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.messages import API_VERSIONS
from penstock.clients.protocol.schema import SchemaApi
from tests.clients.test_opening import played, versions
from tests.waiting import PATIENCE_SECONDS


def test_a_removed_broker_gets_no_more_requests() -> None:
    asked: list[str] = []

    def leaving(api: SchemaApi, version: int, body: Any) -> Any:
        if api is API_VERSIONS:
            return version, versions(Metadata=(0, 13))
        asked.append("leaving")
        return version, {"error_code": ErrorCode.REBOOTSTRAP_REQUIRED}

    def bootstrap(api: SchemaApi, version: int, body: Any) -> Any:
        if api is API_VERSIONS:
            return version, versions(Metadata=(0, 13))
        asked.append("bootstrap")
        return version, {"brokers": [{"node_id": 1, "host": host, "port": port}]}

    with played(leaving) as (host, port), played(bootstrap) as address:
        cluster = Cluster(network_settings({"bootstrap.servers": f"{address[0]}:{address[1]}"}))
        try:

            def ask() -> Any:
                return cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)

            ask()
            with pytest.raises(RetriableBrokerError, match="REBOOTSTRAP_REQUIRED"):
                ask()
            ask()
        finally:
            cluster.close()
    assert asked == ["bootstrap", "leaving", "bootstrap"]


@contextmanager
def cluster_of(servers: str, **settings: object) -> Iterator[Cluster]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    cluster = Cluster(network_settings({"bootstrap.servers": servers, **given}))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.parametrize("checks", [True, False, "false"])
def test_a_connection_to_another_broker_is_refused_by_it(checks: object) -> None:
    """The client does not know who answers at bootstrap.servers, so nothing is checked there."""
    asked: list[tuple[str, object, int]] = []

    def replaced(api: SchemaApi, version: int, body: Any) -> Any:
        asked.append(("replaced", body.cluster_id, body.node_id))
        if body.cluster_id is None:
            return version, versions(Metadata=(0, 13))
        return version, {"error_code": ErrorCode.REBOOTSTRAP_REQUIRED}

    def bootstrap(api: SchemaApi, version: int, body: Any) -> Any:
        if api is API_VERSIONS:
            asked.append(("bootstrap", body.cluster_id, body.node_id))
            return version, versions(Metadata=(0, 13))
        return version, {"cluster_id": "mine", "brokers": [{"node_id": 4, "host": host, "port": port}]}

    with (
        played(replaced) as (host, port),
        played(bootstrap) as address,
        cluster_of(f"{address[0]}:{address[1]}", metadata_cluster_check_enable=checks) as cluster,
    ):
        cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
        opening = cluster.submit(cluster.open, 4)
        if checks is not True:
            opening.result(PATIENCE_SECONDS).socket.close()
            assert asked == [("bootstrap", None, -1), ("replaced", None, -1)]
            return
        with pytest.raises(UnreachableError, match=f"{host}:{port} is not broker 4 of the cluster mine any more"):
            opening.result(PATIENCE_SECONDS)
        with pytest.raises(UnreachableError, match="broker 4 is no longer in the cluster's metadata"):
            cluster.submit(cluster.open, 4).result(PATIENCE_SECONDS)
        cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
    assert asked == [("bootstrap", None, -1), ("replaced", "mine", 4)]


@pytest.mark.broker
def test_a_real_broker_checks_its_cluster_and_its_id(bootstrap_servers: str) -> None:
    with cluster_of(bootstrap_servers) as cluster:
        found = cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
        node = found.brokers[0].node_id
        opened = cluster.submit(cluster.open, node).result(PATIENCE_SECONDS)
        opened.socket.close()
        if opened.versions[API_VERSIONS.key][1] < 5:
            pytest.skip("the broker is older than Kafka 4.4")
        cluster._brokers[node + 1] = cluster._brokers[node]
        with pytest.raises(UnreachableError, match=f"is not broker {node + 1} of the cluster {found.cluster_id}"):
            cluster.submit(cluster.open, node + 1).result(PATIENCE_SECONDS)
        cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
        cluster._cluster_id = "another"
        with pytest.raises(UnreachableError, match=f"is not broker {node} of the cluster another"):
            cluster.submit(cluster.open, node).result(PATIENCE_SECONDS)

"""A broker that was removed from its cluster sends its clients back to bootstrap.servers (KIP-1102)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.clients.cluster.cluster import Cluster
from penstock.clients.errors import ErrorCode, RetriableBrokerError
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

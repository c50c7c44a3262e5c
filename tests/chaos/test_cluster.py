"""The chaos program's requests to a cluster that is not ready."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import CoordinatorLoadInProgressError, GroupAuthorizationFailedError

from tests.chaos.cluster import Cluster

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(bootstrap_servers: str) -> Cluster:
    """A Cluster for the broker of the test run, which it has not started."""
    found = Cluster.__new__(Cluster)
    found.bootstrap_servers = bootstrap_servers
    return found


def test_a_request_is_repeated_while_a_coordinator_loads_its_groups(cluster: Cluster) -> None:
    errors = [CoordinatorLoadInProgressError("not yet"), CoordinatorLoadInProgressError("still not")]

    def question(client: Any) -> Any:
        if errors:
            raise errors.pop()
        return client.list_groups()

    assert isinstance(cluster.ask(question), list)
    assert not errors


def test_a_fatal_error_is_raised_at_once(cluster: Cluster) -> None:
    asked = []

    def question(client: Any) -> None:
        asked.append(client)
        raise GroupAuthorizationFailedError("no")

    with pytest.raises(GroupAuthorizationFailedError):
        cluster.ask(question)
    assert len(asked) == 1

"""Each version of Kafka with a lock file: an application's requests to its brokers, and the results.

The table in docs/clients.md is compared with the requests. With ``-m long`` the client's other tests run, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.clients.cluster.cluster import Cluster
from penstock.dev.dev_broker import DevBroker
from penstock.dev.kafka_distribution import VERSION_VARIABLE, distributions
from penstock.testing.wire import WireProxy
from tests.brokers import FIRST, FOLDER_VARIABLE, SmallBroker
from tests.clients.application import ROOT, Application, Topics, wait_for_values
from tests.clients.conftest import Open
from tests.conftest import BOOTSTRAP_VARIABLE
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
VERSIONS = tuple(distributions())
#: APIs whose request versions show how records are read, written and committed.
SHOWN = ("Fetch", "Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "JoinGroup")
#: The first version of Fetch that identifies topics by id (KIP-516).
FETCH_BY_ID = 13
#: The client's tests with real brokers that depend on these versions.
CLIENT_TESTS = (
    "tests/clients/test_admin_broker.py",
    "tests/clients/test_cluster_broker.py",
    "tests/workers/test_exactly_once_broker.py",
    "tests/clients/test_fetch_broker.py",
    "tests/clients/test_membership.py",
    "tests/clients/test_membership_offsets.py",
    "tests/clients/test_produce_broker.py",
    "tests/clients/test_transactions_wire_broker.py",
)


def features(opened: Open, broker: DevBroker) -> Mapping[str, int]:
    """Return the finalized features of a broker's cluster."""
    cluster = opened(Cluster, broker.bootstrap_servers)
    cluster.submit(cluster.metadata, []).result(PATIENCE_SECONDS)
    connection = cluster.submit(cluster.open, FIRST).result(PATIENCE_SECONDS)
    connection.socket.close()
    return connection.features


def row(version: str, requests: Mapping[tuple[str, int], int], found: Mapping[str, int]) -> str:
    """Return a version's row of the table in docs/clients.md."""
    said = {name: sorted(number for api, number in requests if api == name) for name in SHOWN}
    by_id = "by id" if min(said["Fetch"]) >= FETCH_BY_ID else "by name"
    new = found.get("transaction.version", 0) >= 2
    streams = "yes" if found.get("streams.version", 0) >= 1 else "no"
    numbers = (", ".join(map(str, said[name])) or "none" for name in SHOWN)
    return f"| {' | '.join((version, *numbers, by_id, 'new' if new else 'old', streams))} |"


def check_transactions(requests: Mapping[tuple[str, int], int], have_epochs: bool) -> None:
    """Check that transactions use epochs where the cluster supports them (KIP-890), and otherwise the old protocol."""
    said = {name: [number for api, number in requests if api == name] for name in SHOWN}
    if have_epochs:
        assert min(said["EndTxn"]) >= 5
        assert min(said["TxnOffsetCommit"]) >= 5
        assert min(said["Produce"]) >= 12
        assert not said["AddPartitionsToTxn"]
        assert not said["AddOffsetsToTxn"]
    else:
        assert max(said["EndTxn"]) <= 4
        assert max(said["Produce"]) <= 11
        assert said["AddPartitionsToTxn"]
        assert said["AddOffsetsToTxn"]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_counted_exactly_once_and_the_docs_match(version: str, tmp_path: Path, opened: Open) -> None:
    with (
        # A separate broker for its version; it stops before the next one starts.
        SmallBroker("versions", tmp_path / "broker", kafka=version) as broker,
        WireProxy(broker.bootstrap_servers) as proxy,
    ):
        topics = Topics(broker.bootstrap_servers)
        source, sink = topics.create("in", 2), topics.create("out", 2)
        values = [f"v{number % 7}" for number in range(210)]
        topics.write(source, values[:100])
        config = {
            "bootstrap.servers": proxy.bootstrap_servers,
            "processing.guarantee": "exactly_once_v2",
            "statestore.cache.max.bytes": 0,  # so that each count is written
        }
        application = Application(tmp_path, "counts", "versions", source, sink, config).start()
        try:
            eventually(lambda: len(topics.values(sink)) >= 50, lambda: application.log[-4000:], PATIENCE_SECONDS)
            application.kill()
            topics.write(source, values[100:])
            application.start()
            expected = [f"{value} {n}" for value, count in Counter(values).items() for n in range(1, count + 1)]
            wait_for_values(application, topics, sink, expected)
        finally:
            application.kill()
        found = features(opened, broker)
        check_transactions(proxy.requests, found.get("transaction.version", 0) >= 2)
        seen = row(version, proxy.requests, found)
    print(seen)
    documented = (ROOT / "docs" / "clients.md").read_text().splitlines()
    assert seen in documented, f"seen:\n{seen}\ndocs/clients.md: {[line for line in documented if version in line]}"


def test_the_docs_have_exactly_these_versions() -> None:
    table = re.findall(r"^\| (\d+\.\d+\.\d+) \|", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE)
    assert table == list(VERSIONS)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_clients_tests_pass(version: str) -> None:
    own = (BOOTSTRAP_VARIABLE, FOLDER_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CLIENT_TESTS]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, VERSION_VARIABLE: version}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:]

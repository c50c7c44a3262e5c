"""A stream thread's process runs one third-party Kafka client, confluent-kafka's, and none of the others."""

from __future__ import annotations

import subprocess
import sys

_IMPORTED = """
import sys
import penstock.supervisor.worker_process, penstock.workers.stream_thread
from penstock.workers.client_supplier import KafkaClientSupplier
from penstock.topology.streams_config import StreamsConfig
supplier = KafkaClientSupplier(StreamsConfig({"application.id": "a", "bootstrap.servers": "127.0.0.1:1"}))
supplier.get_group_member("m", lambda members: {}).close(leave=False)
supplier.get_consumer("c").close()
supplier.get_admin("a").close()
print(*sys.modules)
"""
CLIENTS = {"aiokafka", "confluent_kafka", "kafka", "kio", "pykafka"}


def test_a_workers_process_has_no_other_kafka_client() -> None:
    ran = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    modules = set(ran.stdout.split())
    imported = {name.partition(".")[0] for name in modules}
    assert imported & CLIENTS == {"confluent_kafka"}
    assert "confluent_kafka.admin" not in modules  # what it would be asked, the Cluster asks
    assert "scramp" not in imported  # only who authenticates by SCRAM needs it

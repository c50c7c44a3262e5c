"""The process of a stream thread runs no other Kafka client than Penstock's own."""

from __future__ import annotations

import subprocess
import sys

_IMPORTED = """
import sys
import penstock.supervisor.processes.worker_process, penstock.workers.thread.stream_thread
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from penstock.topology.config.streams_config import StreamsConfig
supplier = KafkaClientSupplier(StreamsConfig({"application.id": "a", "bootstrap.servers": "127.0.0.1:1"}))
supplier.get_group_member("m", lambda members: {}).close(leave=False)
supplier.get_consumer("c").close()
supplier.get_producer("p").close()
supplier.get_producer("p", "tx").close()
supplier.get_admin("a").close()
print(*sys.modules)
"""
CLIENTS = {"aiokafka", "confluent_kafka", "kafka", "kio", "pykafka"}


def test_a_workers_process_has_no_other_kafka_client() -> None:
    ran = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in ran.stdout.split()}
    assert not imported & CLIENTS
    assert "scramp" not in imported  # only needed for SCRAM authentication

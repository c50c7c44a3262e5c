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
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
CLIENTS = {"aiokafka", "confluent_kafka", "kafka", "kio", "pykafka"}


def test_a_workers_process_has_no_other_kafka_client() -> None:
    ran = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    imported = set(ran.stdout.split())
    assert imported & CLIENTS == {"confluent_kafka"}
    assert "scramp" not in imported  # only who authenticates by SCRAM needs it

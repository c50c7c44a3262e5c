"""A host is killed while another one watches it: its tasks move long before its session times out."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
from broker_stage import App
from http_client import HttpClient, host_config

from tests.waiting import eventually

pytestmark = pytest.mark.broker

#: The broker's default.
SESSION_SECONDS = 45.0
PARTITIONS = 4


@pytest.mark.parametrize("protocol", ["classic", pytest.param("streams", marks=pytest.mark.slow)])
def test_the_tasks_of_a_killed_host_move_at_once(
    app: App, make_topic: Callable[..., str], tmp_path: Path, protocol: str
) -> None:
    source = make_topic("in", PARTITIONS)
    app.module(f"""
        topology = StreamsBuilder()
        topology.stream("{source}", key_serde=TEXT, value_serde=TEXT).group_by_key().count(store="counts")
    """)
    hosts = []
    for name in ("one", "two"):
        settings = {key.replace(".", "_"): str(value) for key, value in host_config(tmp_path / name).items()}
        del settings["num_standby_replicas"]  # with one of the protocols the broker has this setting
        process = app.start(threads=1, group_protocol=protocol, penstock_host_watch="true", **settings)
        hosts.append((process, HttpClient(int(settings["penstock_http_port"]))))
        share = PARTITIONS // len(hosts)
        for _, http in hosts:
            eventually(partial(runs, http, share), "each host has its share")
    (living, living_http), (other, _) = hosts
    killed_at = time.monotonic()
    tree = psutil.Process(other.pid)
    for victim in (*tree.children(recursive=True), tree):
        victim.kill()
    other.communicate()
    eventually(partial(runs, living_http, PARTITIONS), "the tasks of the killed host run")
    assert time.monotonic() - killed_at < SESSION_SECONDS / 3
    living.terminate()
    assert "is lost: its connection broke, and no program listens there now" in living.communicate()[1]


def runs(http: HttpClient, tasks: int) -> bool:
    """Return True if a host processes this many tasks; False before it listens."""
    try:
        found = http.get("/tasks")
    except OSError:
        return False
    running = [task for task in found if task["kind"] == "active" and task["state"] == "RUNNING"]
    return len(running) == tasks

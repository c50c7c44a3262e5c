"""KafkaStreams.client_instance_ids (KIP-714) with brokers without a metrics plugin, and where nothing is pushed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.supervisor.application_state import ApplicationState
from penstock.topology.errors import StreamsError
from tests.waiting import PATIENCE_SECONDS, eventually

PATIENCE_MS = int(PATIENCE_SECONDS * 1000)
MakeStreams = Callable[..., KafkaStreams]


@pytest.fixture
def make_streams(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> MakeStreams:
    def make(**config: Any) -> KafkaStreams:
        builder = StreamsBuilder()
        builder.stream(make_topic("in"), key_serde=Serdes.string(), value_serde=Serdes.string()).foreach(print)
        base = {"application.id": application_id, "bootstrap.servers": bootstrap_servers, "state.dir": str(tmp_path)}
        return KafkaStreams(builder, {**base, **{key.replace("_", "."): value for key, value in config.items()}})

    return make


@pytest.mark.broker
def test_a_broker_without_a_plugin_gives_no_ids(make_streams: MakeStreams, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with make_streams() as streams:
        streams.start()
        with pytest.raises(TimeoutError, match=r"Not all stream threads have answered|no broker has given"):
            streams.client_instance_ids(0)
        eventually(lambda: streams.state is ApplicationState.RUNNING, lambda: streams.state)
        with pytest.raises(
            TimeoutError, match=r"no broker has given .*-StreamThread-1-consumer, .* a client instance id"
        ):
            streams.client_instance_ids(100)
    assert "metrics" not in caplog.text  # nothing is wrong


@pytest.mark.broker
def test_nothing_is_pushed_if_it_is_disabled(make_streams: MakeStreams) -> None:
    with make_streams(enable_metrics_push=False) as streams:
        streams.start()
        ids = streams.client_instance_ids(PATIENCE_MS)
    assert ids.consumer_instance_ids() == ids.producer_instance_ids() == {}
    with pytest.raises(
        StreamsError, match=r"Telemetry is not enabled on the admin client: set enable\.metrics\.push=true"
    ):
        ids.admin_instance_id()


def test_it_needs_a_running_application(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in").foreach(print)
    config = {"application.id": "app", "bootstrap.servers": "127.0.0.1:1", "state.dir": str(tmp_path)}
    streams = KafkaStreams(builder, config)
    with pytest.raises(StreamsError, match=r"has not been started, you can retry after calling start\(\)"):
        streams.client_instance_ids(1)
    with pytest.raises(ValueError, match="The timeout cannot be negative"):
        streams.client_instance_ids(-1)
    streams.close()
    with pytest.raises(StreamsError, match=r"KafkaStreams has been stopped \(NOT_RUNNING\)"):
        streams.client_instance_ids(1)

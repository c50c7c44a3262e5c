"""The processing exception handler in a stream thread."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.topology.errors import StreamsError
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, counting, feed
from tests.workers.thread_stage import Application


def test_no_handler_is_called_whose_answer_is_not_followed(
    cluster: DirectKafka, application: Callable[..., Application], caplog: pytest.LogCaptureFixture
) -> None:
    """A negative timestamp ends the thread, as in Kafka Streams, and nothing says that the record was dropped."""
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting(), processing_exception_handler="log_and_continue")
    thread = app.thread().until_running()
    feed(cluster, "a", timestamp=-5)
    with pytest.raises(StreamsError, match=r"negative\) timestamp"):
        thread.step(3)
    assert "dropped" not in caplog.text

"""A changelog is deleted while the application runs: the thread ends with an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from tests.topics import delete_topics
from tests.workers.test_stream_thread_broker import Case

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_deleting_a_changelog_during_writes_ends_the_thread_with_advice(
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    admin: AdminClient,
    tmp_path: Path,
    guarantee: str,
) -> None:
    case = Case(bootstrap_servers, application_id, make_topic, tmp_path / str(uuid4()), "classic")
    case.feed(30)
    # By default librdkafka waits 30 s before it reports a topic as missing.
    runner = case.start(processing_guarantee=guarantee, producer_topic_metadata_propagation_max_ms=500)
    try:
        runner.until(lambda: runner.processed == 30)
        changelog = f"{application_id}-counts-changelog"
        delete_topics(admin, changelog)
        case.feed(30)
        with pytest.raises(AssertionError) as failed:  # with the traceback that the thread has reported
            runner.until(lambda: False)
        text = str(failed.value)
        assert f"topic {changelog} partition" in text
        assert "The changelog was deleted. The state built so far is lost with it" in text
        assert "penstock reset MODULE:TOPOLOGY --execute" in text
    finally:
        runner.stop()

"""Spark's settings for queries: Penstock's defaults, and what the user has set."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.pipeline.session.query_settings import set_for_queries

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
METRICS = "spark.sql.streaming.metricsEnabled"

pytestmark = pytest.mark.slow


@pytest.fixture
def session(spark: Any) -> Any:
    """Return a session with its own settings."""
    return spark.newSession()


def test_without_user_settings_penstocks_apply(session: Any) -> None:
    set_for_queries(session)
    assert (session.conf.get(CHANGELOG), session.conf.get(METRICS)) == ("true", "true")


def test_what_the_user_has_set_stays(session: Any) -> None:
    session.conf.set(CHANGELOG, "false")
    session.conf.set(METRICS, "false")
    set_for_queries(session)
    assert (session.conf.get(CHANGELOG), session.conf.get(METRICS)) == ("false", "false")

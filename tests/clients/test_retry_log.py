"""Long retries and throttles are logged once, with their name, and again when they end."""

from __future__ import annotations

import logging

import pytest

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.retry_log import TELL_AFTER_MS, THROTTLED, RetryLog
from penstock.clients.throttle import Throttle, Times

FETCH = "Fetch of in-0"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> RetryLog:
    caplog.set_level(logging.INFO)
    return RetryLog(PrefixedLogger("penstock.test", "[c] "))


def test_a_retry_is_logged_after_a_while_and_when_it_ends(log: RetryLog, caplog: pytest.LogCaptureFixture) -> None:
    for ms in range(0, 20_000, 100):
        log.failed(FETCH, "INVALID_REQUEST from broker 1", ms)
        assert len(caplog.messages) == (ms >= TELL_AFTER_MS)
    assert log.current(20_000) == (f"{FETCH} is retried: INVALID_REQUEST from broker 1",)
    log.succeeded(FETCH, 20_000)
    log.succeeded(FETCH, 20_100)
    assert caplog.messages == [
        f"[c] {FETCH} is retried for 5 s: INVALID_REQUEST from broker 1",
        f"[c] {FETCH} is no longer retried, after 20 s",
    ]
    assert log.current(20_100) == ()


def test_short_retries_are_never_logged(log: RetryLog, caplog: pytest.LogCaptureFixture) -> None:
    for ms in range(0, 60_000, 100):
        log.failed(FETCH, "NOT_LEADER_OR_FOLLOWER from broker 1", ms)
        if ms % 4_000 == 3_900:
            assert log.current(ms) == ()
            log.succeeded(FETCH, ms)
    assert caplog.messages == []


def test_for_a_retry_that_the_caller_has_logged_only_the_end_is_logged(
    log: RetryLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.failed(FETCH, "refused", 0, is_told=True)
    assert log.current(0) == (f"{FETCH} is retried: refused",)
    log.failed(FETCH, "refused", 10_000)
    log.succeeded(FETCH, 11_000)
    assert caplog.messages == [f"[c] {FETCH} is no longer retried, after 11 s"]


def test_abandoned_retries_are_forgotten(log: RetryLog, caplog: pytest.LogCaptureFixture) -> None:
    log.failed(FETCH, "refused", 0, is_told=True)
    log.drop(FETCH)
    log.succeeded(FETCH, 10_000)
    assert (caplog.messages, log.current(10_000), bool(log)) == ([], (), False)


def test_a_retry_without_an_attempt_for_a_minute_is_not_shown(log: RetryLog) -> None:
    """A loop may end without a success, e.g. at its timeout. A long throttle does not end by this rule."""
    log.failed(FETCH, "refused", 0, is_told=True)
    log.failed("Produce by broker 1", "a quota", 0, state=THROTTLED, lasts_ms=30_000, is_told=True)
    assert len(log.current(60_000)) == 2
    assert log.current(60_001) == log.current(90_000) == ("Produce by broker 1 is throttled: a quota",)
    assert log.current(90_001) == ()
    log.failed(FETCH, "refused", 100_000)
    assert log.current(100_000) == (f"{FETCH} is retried: refused",)


def test_a_throttle_is_logged_with_the_quota_and_its_end(log: RetryLog, caplog: pytest.LogCaptureFixture) -> None:
    throttle = Throttle(log, "app-consumer")
    for ms in (0, 1_000, 2_000):
        throttle.note(1, "Fetch", 900, ms)
    assert caplog.messages == []
    throttle.note(1, "Fetch", 3_000, 3_000)  # it lasts until 6,000
    assert throttle.ago_ms(1, 5_000) == -1_000
    assert throttle.ago_ms(1, 7_000) == 1_000
    assert throttle.ago_ms(2, 7_000) is None
    throttle.note(1, "Fetch", 0, 7_000)
    assert caplog.messages == [
        "[c] Fetch by broker 1 is throttled for 6 s: a quota of client.id=app-consumer or its user is "
        "exceeded, consumer_byte_rate or request_percentage (kafka-configs.sh --describe --entity-type clients, or "
        "users, shows it)",
        "[c] Fetch by broker 1 is no longer throttled, after 7 s",
    ]
    assert throttle.take_times() == Times(5, 5_700, 3_000)
    assert throttle.take_times() == Times(0, 0, 0)

"""Long retries of a client are logged once, with their name, and again when they end."""

from __future__ import annotations

from dataclasses import dataclass

from .log_context import PrefixedLogger

#: How long a retry must last before it is logged, in ms.
TELL_AFTER_MS = 5_000
#: How long after its last attempt a retry counts as active, in ms.
STALE_MS = 60_000
RETRIED, THROTTLED = "retried", "throttled"


@dataclass(slots=True)
class _Retry:
    """state: RETRIED or THROTTLED. until_ms: the end of the last attempt, and of its duration."""

    what: str
    why: str
    state: str
    since_ms: float
    until_ms: float
    is_told: bool = False


class RetryLog:
    """The retries of one client, by name, such as ``Fetch of in-0``. Every retry loop of a client reports to one.

    Written by one thread; any thread may call ``current``. Times in ms, of the client's clock.
    """

    def __init__(self, log: PrefixedLogger) -> None:
        self._log = log
        self._open: dict[str, _Retry] = {}

    def __bool__(self) -> bool:
        """Return whether anything is being retried."""
        return bool(self._open)

    def failed(
        self, what: str, why: str, now_ms: float, *, state: str = RETRIED, lasts_ms: float = 0, is_told: bool = False
    ) -> None:
        """Record that an attempt has failed and will be repeated, or that a broker throttles it.

        lasts_ms: how long nothing is attempted from now on. is_told: the caller has logged it already.
        """
        retry = self._open.get(what)
        if retry is None:
            retry = self._open[what] = _Retry(what, why, state, now_ms, now_ms)
        retry.why, retry.until_ms = why, now_ms + lasts_ms
        retry.is_told |= is_told
        lasted_ms = retry.until_ms - retry.since_ms
        if not retry.is_told and lasted_ms >= TELL_AFTER_MS:
            retry.is_told = True
            self._log.warning("%s is %s for %.0f s: %s", what, state, lasted_ms / 1000, why)

    def succeeded(self, what: str, now_ms: float) -> None:
        """Record that an attempt has succeeded."""
        retry = self._open.pop(what, None)
        if retry is not None and retry.is_told:
            self._log.info("%s is no longer %s, after %.0f s", what, retry.state, (now_ms - retry.since_ms) / 1000)

    def drop(self, what: str) -> None:
        """Forget about retries: the result is no longer wanted, or the failure is final and reported elsewhere."""
        self._open.pop(what, None)

    def current(self, now_ms: float) -> tuple[str, ...]:
        """Return the logged retries that have not ended, as texts for a status.

        A retry that ended without a success, and has not restarted for a while, is left out.
        """
        since_ms = now_ms - STALE_MS
        found = [retry for retry in tuple(self._open.values()) if retry.is_told and retry.until_ms >= since_ms]
        return tuple(f"{retry.what} is {retry.state}: {retry.why}" for retry in found)

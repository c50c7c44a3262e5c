"""Checks the cleanup policies of existing internal topics.

With a wrong policy the broker silently deletes state or input. It is only logged: it may be intended, and a restart
would not fix it. Kafka Streams: InternalTopicManager.validate.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clients.cluster.admin import Admin
from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import PrefixedLogger

POLICY = "cleanup.policy"
#: Time limit of a request, in ms; without a response nothing is logged until the next check.
REQUEST_MS = 10_000


class CleanupPolicies:
    """Checks each topic until the brokers have answered once. servers: for the command in the log that fixes it."""

    def __init__(self, admin: Admin, servers: str, log: PrefixedLogger) -> None:
        self._admin = admin
        self._servers = servers
        self._log = log
        self._checked: set[str] = set()

    def check(self, needed: Mapping[str, str]) -> None:
        """Log wrong policies. needed: by topic, the policy that a new topic would get."""
        new = [name for name in needed if name not in self._checked]
        if not new:
            return
        try:
            found = self._admin.topic_config(new, POLICY, REQUEST_MS)
        except (RetriableError, BrokerError) as error:
            self._log.debug("The cleanup policies could not be read: %s", error)
            return
        for name, actual in found.items():
            if isinstance(actual, BrokerError):  # not allowed, or not known there yet
                self._log.debug("The cleanup policy of %s could not be read: %s", name, actual)
                continue
            self._checked.add(name)
            self._judge(name, actual, needed[name])

    def _judge(self, name: str, actual: str, needed: str) -> None:
        consequence = _consequence(set(actual.replace(" ", "").split(",")), needed)
        if consequence is not None:
            self._log.error(
                "Internal topic %s has cleanup.policy=%s instead of %s: %s. Fix it with: kafka-configs "
                "--bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config cleanup.policy=[%s]",
                name,
                actual,
                needed,
                consequence,
                self._servers,
                name,
                needed,
            )


def _consequence(actual: set[str], needed: str) -> str | None:
    """Return the consequence, None if there is none: a windowed changelog that is only compacted just grows."""
    if needed == "delete":
        return "records are lost before they are read" if "compact" in actual else None
    if "compact" not in actual:
        return "the state that is older than the topic's retention is lost with the next restore"
    if "delete" in actual and "delete" not in needed:
        return "the state that has not changed within the topic's retention is lost with the next restore"
    return None

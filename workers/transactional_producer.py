"""librdkafka's producer with transactions whose calls come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from penstock.clients.writing.produce_settings import ProduceSettings
from penstock.clients.writing.transaction_requests import GroupMetadata

from .membership.group_metadata import encode_group_metadata
from .producer_errors import checked

#: How much longer than it was told to a call may take, in seconds, before it is given up.
GRACE_SECONDS = 2.0
#: The timeout if none is given.
DEFAULT_SECONDS = 60.0


class TransactionalProducer(Producer):
    """Gives a call of the transaction up when it does not return in time.

    With librdkafka 2.16 ``send_offsets_to_transaction``, called while the transaction coordinator is away, may wait for
    ever when it comes back, whatever timeout it was given. Such a client cannot be used any more, nor be closed: it is
    left alone, with the thread that waits in it, and fenced by the one that replaces it.

    produce_settings: how a TransactionalKafkaProducer writes in its place, None if librdkafka is to write.
    """

    produce_settings: ProduceSettings | None = None

    def init_transactions(self, timeout: float = DEFAULT_SECONDS) -> None:
        """See Producer; raises KafkaException with _TIMED_OUT if the call does not return, as all of these do."""
        _bounded(super().init_transactions, timeout)

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: GroupMetadata, timeout: float = DEFAULT_SECONDS
    ) -> None:
        """See Producer."""
        _bounded(super().send_offsets_to_transaction, positions, encode_group_metadata(group_metadata), timeout)

    def commit_transaction(self, timeout: float = DEFAULT_SECONDS) -> None:
        """See Producer."""
        _bounded(super().commit_transaction, timeout)

    def abort_transaction(self, timeout: float = DEFAULT_SECONDS) -> None:
        """See Producer."""
        _bounded(super().abort_transaction, timeout)


def _bounded(call: Callable[..., Any], *arguments: Any) -> None:
    """Make a call, the last of whose arguments is its timeout in seconds, in a thread that may be left behind."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            checked(call, *arguments)
        except BaseException as error:  # noqa: BLE001  raised again below
            raised.append(error)

    thread = threading.Thread(target=run, name="transaction", daemon=True)
    thread.start()
    thread.join(arguments[-1] + GRACE_SECONDS)
    if thread.is_alive():
        reason = f"librdkafka did not return from {call.__name__} within {arguments[-1] + GRACE_SECONDS:.0f} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason, retriable=True))
    if raised:
        raise raised[0]

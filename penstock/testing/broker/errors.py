"""Errors of a broker, with Kafka's codes."""

from __future__ import annotations

from penstock.clients.errors import ErrorCode

__all__ = ["ApiError", "ErrorCode", "producer_code"]


class ApiError(Exception):
    """An error response. code: Kafka's. message: for the responses that carry one, None if Kafka sends none."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message


def producer_code(error: ApiError, knows_fenced: bool) -> ErrorCode:
    """Return the error code for a refused producer; before PRODUCER_FENCED existed (KIP-588), it is that of an old
    epoch.
    """
    if error.code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code

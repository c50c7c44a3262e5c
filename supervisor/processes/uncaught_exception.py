"""What happens when a stream thread dies of an exception (Kafka Streams: StreamsUncaughtExceptionHandler, KIP-671)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import StreamsError


class StreamsUncaughtExceptionHandlerResponse(Enum):
    """The supervisor's possible reactions (Kafka Streams: StreamThreadExceptionResponse)."""

    #: Replace the process in its slot, under the same limits as one that crashed.
    REPLACE_THREAD = "REPLACE_THREAD"
    #: Stop all stream threads of this application on this host; it ends in ERROR.
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    #: Ask the stream threads of all hosts to stop; each application ends in ERROR.
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"


class StreamThreadError(StreamsError):
    """The exception that a stream thread died of. It happened in another process, so it is represented as text.

    thread_name: the stream thread; kind: the exception's class name; traceback: its traceback as text.
    """

    def __init__(self, thread_name: str, kind: str, message: str, traceback: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.thread_name = thread_name
        self.kind = kind
        self.traceback = traceback


#: Called with the exception, returns the decision.
UncaughtExceptionHandler = Callable[[StreamThreadError], StreamsUncaughtExceptionHandlerResponse]


def shut_down_client(_error: StreamThreadError) -> StreamsUncaughtExceptionHandlerResponse:
    """Return SHUTDOWN_CLIENT: the default handler."""
    return StreamsUncaughtExceptionHandlerResponse.SHUTDOWN_CLIENT


def ask(
    handler: UncaughtExceptionHandler, error: StreamThreadError, log: PrefixedLogger
) -> StreamsUncaughtExceptionHandlerResponse:
    """Return the handler's decision; SHUTDOWN_CLIENT if the handler fails, or returns no valid one."""
    try:
        return StreamsUncaughtExceptionHandlerResponse(handler(error))
    except Exception:
        log.exception("The uncaught exception handler itself failed; shutting down the client")
        return StreamsUncaughtExceptionHandlerResponse.SHUTDOWN_CLIENT

"""The exit codes, which are a contract. docs/operations.md has the table; a test keeps both in sync."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``penstock run`` and KafkaStreams.run().

    A service manager should restart on all but OK, USAGE, TOPOLOGY, LOCKED and INSTALLATION, which need an operator.
    """

    #: Stopped by a signal or close(); everything processed is committed.
    OK = 0
    #: A stream thread failed with an exception, and the uncaught exception handler shut the application down.
    FAILED = 1
    #: The command line or the configuration is wrong.
    USAGE = 2
    #: The topology cannot be imported or built at the first start, or a client refuses its configuration.
    TOPOLOGY = 3
    #: Another process on this host runs the same application.id with the same state.dir.
    LOCKED = 4
    #: Stream threads died more often than penstock.worker.restart.max allows.
    RESTART_LIMIT = 5
    #: Stopped, but a stream thread did not finish in penstock.shutdown.timeout.ms and was killed.
    SHUTDOWN_TIMEOUT = 6
    #: A second signal, or SIGQUIT, killed the stream threads; uncommitted records are processed again.
    FORCED = 7
    #: Penstock's compiled kernel is not built for this Python: nothing was started.
    INSTALLATION = 8
    #: A bug in Penstock; the traceback is in the log.
    INTERNAL = 70


class WorkerExitCode(IntEnum):
    """Exit codes of a stream thread's process; logged at its end."""

    #: Closed on request.
    STOPPED = 0
    #: The stream thread raised an exception, which it has reported.
    FAILED = 1
    #: The topology could not be imported or built, or the configuration is wrong.
    BOOT_FAILED = 3
    #: The supervisor is gone.
    ORPHANED = 9

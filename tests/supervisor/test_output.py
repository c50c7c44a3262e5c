"""Output and logs of processes leave through the supervisor's process, complete."""

from __future__ import annotations

import logging
import threading

import pytest
from stage import Conductor, LogLines, MakeApplication

from penstock.supervisor.exit_codes import ExitCode
from tests.waiting import PATIENCE_SECONDS


def test_stdout_stays_stdout_and_stderr_goes_to_the_log(
    application: MakeApplication, conductor: Conductor, log: LogLines, capfd: pytest.CaptureFixture[str]
) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.order("print", stdout="a result", stderr="from a C library\nwithout an end")
    log.wait_for(f"stream-thread [{one.name}] stderr: from a C library")
    app.supervisor.shut_down()
    assert app.ends() == ExitCode.OK
    assert capfd.readouterr().out == "a result\n"
    log.wait_for(f"stream-thread [{one.name}] stderr: without an end")  # the rest when the process ends


def test_log_records_keep_their_logger_level_and_arguments(
    application: MakeApplication, conductor: Conductor, log: LogLines, caplog: pytest.LogCaptureFixture
) -> None:
    application(1)
    (one,) = conductor.running(1)
    one.order("log", level=logging.ERROR, message="no %s for %s", arguments=["serde", "topic"])
    log.wait_for("no serde for topic")
    record = next(record for record in caplog.records if record.name == "user.code")
    assert (record.levelno, record.process) == (logging.ERROR, one.pid)
    log.wait_for("UserWarning: a user's warning")


def test_records_below_the_configured_level_are_not_sent(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    application(1, {"penstock.log.level": "ERROR"})
    (one,) = conductor.running(1)
    one.order("log", level=logging.WARNING, message="quiet", arguments=[])
    one.order("log", level=logging.ERROR, message="loud", arguments=[])
    log.wait_for("loud")
    assert "quiet" not in log.text


def test_one_thread_writes_everything(application: MakeApplication, conductor: Conductor) -> None:
    writers = set()

    class Writers(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "user.code":
                writers.add(threading.current_thread().name)
                if len(writers) and record.getMessage() == "last":
                    done.release()

    done = threading.Semaphore(0)
    handler = Writers()
    logging.getLogger("user.code").addHandler(handler)
    try:
        application(2)
        for worker in conductor.running(2):
            worker.order("log", level=logging.ERROR, message="last", arguments=[])
        assert done.acquire(timeout=PATIENCE_SECONDS)
        assert done.acquire(timeout=PATIENCE_SECONDS)
    finally:
        logging.getLogger("user.code").removeHandler(handler)
    assert writers == {"penstock-supervisor"}

"""Ends the process of a stream thread, even if user code is still running."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from typing import NoReturn

logger = logging.getLogger(__name__)

#: How long a process may take to end once its stream thread is done, in seconds. An exiting interpreter waits for
#: non-daemon threads and for children of multiprocessing, without a limit.
END_SECONDS = 5.0


def end_process(code: int) -> NoReturn:
    """End this process with an exit code: cleanly within END_SECONDS, otherwise by force.

    Threads, processes and atexit functions of the user's code get that time. Processes that multiprocessing or
    concurrent.futures has started are killed after it; others, e.g. of subprocess, continue.
    """
    threading.Thread(target=_end_by_force, args=(code,), name="penstock-end", daemon=True).start()
    sys.exit(code)


def _end_by_force(code: int) -> None:
    time.sleep(END_SECONDS)
    children = multiprocessing.active_children()
    logger.warning(
        "Process %d ends by force: its stream thread is done, but %s of the user's code still ran after %g s",
        os.getpid(),
        " and ".join(_left_running()) or "something",
        END_SECONDS,
    )
    for child in children:
        child.kill()
    os._exit(code)


def _left_running() -> list[str]:
    threads = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    children = [str(child.pid) for child in multiprocessing.active_children()]
    named = (("thread", threads), ("process", children))
    return [f"{kind} {', '.join(names)}" for kind, names in named if names]

"""The error for a failed query: the cause and the fix, extracted from Spark's Java and Python messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from penstock.topology.errors import StreamsError

log = logging.getLogger(__name__)

#: Exceptions of calls into Java when it has ended, or is ending.
JAVA_ERRORS: tuple[type[Exception], ...] = (Py4JError, ConnectionError)
JAVA_ENDED = "Spark's Java has ended, or does not answer; the next start continues from the checkpoint"
#: The line with Penstock's own error.
_OUR_ERROR = re.compile(r"^penstock\.(?:\w+\.)*\w+Error: (.*)$", re.MULTILINE)
#: The last line of a Python traceback.
_PYTHON_ERROR = re.compile(r"^.*Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)
#: Spark's message when a Python process for a query's first access to its state does not respond in time.
_LATE = re.compile(r"Python worker failed to connect back")
PYTHON_WAS_LATE = "this machine is too busy to start a Python in the 10 s that Spark waits for it"
#: Text of a failure -> its fix.
_ADVICE: Sequence[tuple[re.Pattern[str], str]] = (
    (
        re.compile(r"ModuleNotFoundError|ImportError"),
        "The Python of Spark's executors, $PYSPARK_PYTHON, must find your module and Penstock's dependencies: "
        "install them there, or send them with --py-files.",
    ),
    (
        re.compile(r"DATA_LOSS|data may have been lost|UnknownTopicOrPartition|partitions? .* (?:gone|deleted)", re.I),
        "A topic was deleted, or has lost unread records. If these may be skipped, start with another "
        "--checkpoint, which has no state.",
    ),
    (
        re.compile(r"TimeoutException|Timed out waiting for a node|DisconnectException"),
        "Check bootstrap.servers and whether the brokers run; the next start continues from the checkpoint.",
    ),
    (_LATE, PYTHON_WAS_LATE),
)


def python_was_late(error: StreamingQueryException) -> bool:
    """Return whether a query has failed at its start, because Python did not start in time."""
    return _LATE.search(str(error)) is not None


@contextmanager
def unless_java_has_ended(what: str) -> Iterator[None]:
    """Stop a part of Spark; no effect if its Java has ended already, perhaps by the same signal."""
    try:
        yield
    except JAVA_ERRORS as error:
        log.info("%s was not stopped: Spark's Java has ended, or is ending: %s", what, error)


def query_failure(name: str, error: StreamingQueryException) -> StreamsError:
    """Return the error for a failed query: Penstock's message if an operator failed, otherwise the cause's."""
    text = str(error)
    ours = _OUR_ERROR.findall(text)
    if ours:
        return StreamsError(f"The Spark query {name} failed: {ours[-1]}")
    python = _PYTHON_ERROR.findall(text)
    advice = next((advice for pattern, advice in _ADVICE if pattern.search(text)), "")
    first = text.strip().splitlines()[0]
    what = (python[-1] if python else first).rstrip(".;")
    return StreamsError(f"The Spark query {name} failed: {what}{'. ' if advice else ''}{advice}")

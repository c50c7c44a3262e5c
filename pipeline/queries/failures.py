"""The error for a failed query: the cause and the fix, extracted from Spark's Java and Python messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from penstock.topology.errors import StreamsError

log = logging.getLogger(__name__)

#: Exceptions of calls into Java when it has ended, or is ending.
JAVA_ERRORS: tuple[type[Exception], ...] = (Py4JError, ConnectionError)
JAVA_ENDED = "Spark's Java has ended, or does not answer; the next start continues from the checkpoint"
#: The line with Penstock's own error.
_OUR_ERROR = re.compile(r"^penstock\.(?:\w+\.)*\w+Error: (.*)$", re.MULTILINE)
#: The causes in a stack trace of Java's, the deepest one last.
_JAVA_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
#: The last line of a Python traceback.
_PYTHON_ERROR = re.compile(r"^.*Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Passing:
    """A kind of failure that passes: the query is restarted.

    pattern: of its text. starts_max: so many times in a row, None for no limit; pause_seconds: before each start.
    """

    pattern: re.Pattern[str]
    reason: str
    starts_max: int | None
    pause_seconds: float


#: A Python process for a query's first access to its state does not respond in time.
PYTHON_WAS_LATE = Passing(
    re.compile(r"Python worker failed to connect back"),
    "this machine is too busy to start a Python in the 10 s that Spark waits for it",
    starts_max=10,
    pause_seconds=0.0,
)
#: In the driver, in Spark's source on the executors, or in the sink. A running local engine waits without a limit, too.
BROKERS_ARE_AWAY = Passing(
    re.compile(
        r"org\.apache\.kafka\.common\.errors\.(?:TimeoutException|DisconnectException)"
        r"|Cannot fetch record .* milliseconds"
        r"|penstock\.topology\.errors\.BrokerUnavailableError: "
    ),
    "the brokers do not respond; check bootstrap.servers and whether they run",
    starts_max=None,
    pause_seconds=5.0,
)
#: Text of a failure -> its fix. The first one that matches is said.
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
        re.compile(r"No space left on device|Disk quota exceeded"),
        "Make room there. The next start continues from the checkpoint.",
    ),
    (
        re.compile(r'Cannot run program "\./'),
        "The driver, too, starts a Python of spark.pyspark.python for operators with state: unpack the archive in the "
        "folder in which the driver runs.",
    ),
    (PYTHON_WAS_LATE.pattern, PYTHON_WAS_LATE.reason),
    (
        re.compile(r"STATE_STORE|state checkpoint|FileNotFoundException|NoSuchFileException"),
        "Is the checkpoint {checkpoint} there, readable and writable? The next start continues from it.",
    ),
)


def passing(error: StreamingQueryException) -> Passing | None:
    """Return the kind of a failure that passes; None for all others."""
    text = str(error)
    return next((kind for kind in (PYTHON_WAS_LATE, BROKERS_ARE_AWAY) if kind.pattern.search(text)), None)


@contextmanager
def unless_java_has_ended(what: str) -> Iterator[None]:
    """Stop a part of Spark; no effect if its Java has ended already, perhaps by the same signal."""
    try:
        yield
    except JAVA_ERRORS as error:
        log.info("%s was not stopped: Spark's Java has ended, or is ending: %s", what, error)


def own_message(text: str) -> str:
    """Return the message of Penstock's own error in a text of Spark's, empty if there is none."""
    return next(iter(_OUR_ERROR.findall(text)[-1:]), "")


def query_failure(name: str, error: StreamingQueryException, checkpoint: str) -> StreamsError:
    """Return the error for a failed query: Penstock's message if an operator failed, otherwise the cause's and advice.

    checkpoint: its directory.
    """
    text = str(error)
    ours = own_message(text)
    if ours:
        return StreamsError(f"The Spark query {name} failed: {ours}")
    python = _PYTHON_ERROR.findall(text)
    stack = str(getattr(error, "_stackTrace", ""))  # it is not in the text unless the user's session asks for it
    advice = next((advice for pattern, advice in _ADVICE if pattern.search(f"{text}\n{stack}")), "")
    advice = advice.replace("{checkpoint}", checkpoint)
    first = text.strip().splitlines()[0]
    what = (python[-1] if python else first).rstrip(".;")
    cause = next(iter(_JAVA_CAUSE.findall(stack)[-1:]), "")
    if not python and cause not in what:
        what = f"{what}: {cause}".rstrip(".;")
    return StreamsError(f"The Spark query {name} failed: {what}{'. ' if advice else ''}{advice}")

"""Sends a topology to the process of a stream thread: by reference, or pickled if it has none."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import PenstockError, TopologyError
from penstock.topology.graph.topology import Topology

from . import pickling

#: Penstock's folder, as it appears in tracebacks.
_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")
T = TypeVar("T")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class TopologyLoadError(TopologyError):
    """The topology cannot be imported or built."""

    def explained(self) -> str:
        """Return the message, and the traceback through the user's own code, if any.

        Frames of the import system and of Penstock are left out: they would hide the few lines that matter.
        """
        cause = self.__cause__
        if cause is None:
            return str(self)
        shown = traceback.TracebackException.from_exception(cause)
        shown.stack = traceback.StackSummary.from_list([frame for frame in shown.stack if _is_users(frame)])
        has_traceback = bool(shown.stack) or isinstance(cause, SyntaxError)
        return f"{self}\n{''.join(shown.format())}".rstrip() if has_traceback else str(self)


@dataclass(frozen=True, slots=True)
class TopologySource:
    """``module:attribute``, or the bytes of a pickled topology. Exactly one of them is set.

    The attribute is a Topology, a StreamsBuilder, or a function without arguments that returns one of them.
    """

    reference: str | None = None
    pickled: bytes | None = None

    @classmethod
    def of(cls, topology: object) -> TopologySource:
        """Return the source of a reference, or of a topology object. Raises TopologyError if it cannot be pickled.

        Functions of ``__main__`` and lambdas are sent as code, importable modules by name.
        """
        if isinstance(topology, str):
            hint = _hint(topology)
            if not _REFERENCE.fullmatch(topology):
                raise TopologyError(f"{topology!r} is not of the form module:attribute, e.g. my_app:topology{hint}.")
            if hint and os.path.isfile(topology.partition(":")[0]):
                raise TopologyError(f"{topology!r} names a file, not a module{hint}.")
            return cls(reference=topology)
        try:
            return cls(pickled=pickling.dumps(topology))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise TopologyError(
                f"The topology cannot be sent to the stream threads: {error}. Put it into a module and give "
                "KafkaStreams the reference 'module:attribute', so that each process builds its own."
            ) from error

    def load(self, config: StreamsConfig | None = None, on_import: Callable[[], object] = lambda: None) -> Topology:
        """Import or unpickle the topology and build it; the working directory is on the path.

        config: the configuration for building a StreamsBuilder (topology.optimization). on_import: called between
        import and build. Raises TopologyLoadError, with the cause, for any failure.
        """

        def find_and_build() -> Topology:
            found = self._find()
            on_import()
            return build(found, config)

        return self._guarded(find_and_build)

    def load_for_command(self, config: StreamsConfig | None = None) -> Topology:
        """Return and raise as ``load`` does; output of the user's modules goes to stderr: stdout is the command's."""
        with _stdout_to_stderr():
            return self.load(config)

    def prepare(self) -> None:
        """Import the dependencies of ``load``: the user's module, or all modules that a pickled topology refers to.

        No function is called, so a topology is built only once per process. Raises as ``load`` does.
        """
        self._guarded(self._find)

    def _find(self) -> object:
        if self.pickled is not None:
            return pickling.loads(self.pickled)
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.insert(0, os.getcwd())
        module, _, attribute = (self.reference or "").partition(":")
        found: object = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        return found

    def _guarded(self, get: Callable[[], T]) -> T:
        try:
            return get()
        except TopologyLoadError:
            raise
        except PenstockError as error:
            raise TopologyLoadError(f"{self.reference or 'The topology'} cannot be built: {error}") from error
        except (Exception, SystemExit) as error:
            raise TopologyLoadError(
                f"{self.reference or 'The topology'} cannot be loaded: {type(error).__name__}: {error}"
                f"{self._advice(error) or _where(error)}"
            ) from error

    def _advice(self, error: BaseException) -> str:
        module = (self.reference or "").partition(":")[0]
        if isinstance(error, ModuleNotFoundError) and error.name and (module + ".").startswith(error.name + "."):
            return f". Is the name right, and is {os.getcwd()} the folder it is in?"
        if isinstance(error, AttributeError) and self.reference:
            return f". Is the part after the colon the name of a topology in {module}?"
        return ""


def _hint(topology: str) -> str:
    """Return the problem of a text that should be ``module:attribute``, "" if it is not a common mistake."""
    module, _, attribute = topology.partition(":")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        return f": leave .py out and write {dotted}:{attribute or 'topology'}"
    wrong = re.search(r"[^\w.]", module) or re.search(r"[^\w.]", attribute)
    if wrong is None:
        return ""
    return f": a Python name has no {wrong[0]!r}" + ("; folders are separated by '.'" if wrong[0] == "/" else "")


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect Python's stdout and, for C code and child processes, the file descriptor."""
    sys.stdout.flush()
    stdout, stderr = 1, 2
    kept = os.dup(stdout)
    os.dup2(stderr, stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, stdout)
        os.close(kept)


def _where(error: BaseException) -> str:
    """Return the line of the user's code that raised an error, if any."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _is_users(frame: traceback.FrameSummary) -> bool:
    """Return whether a frame belongs neither to Penstock nor to the import system."""
    return not frame.filename.startswith((_OURS, importlib.__file__, "<frozen"))


def build(found: object, config: StreamsConfig | None) -> Topology:
    """Return the Topology of a loaded object: calls it if it is a function, builds it if it is a StreamsBuilder.

    Raises TopologyLoadError for anything else.
    """
    if callable(found) and not isinstance(found, type):
        found = found()
    if isinstance(found, StreamsBuilder):
        found = found.build(config)
    if not isinstance(found, Topology):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise TopologyLoadError(f"Expected a Topology, a StreamsBuilder, or a function that returns one, not {kind}.")
    return found

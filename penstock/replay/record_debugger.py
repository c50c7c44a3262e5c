"""The debuggers of a record: pdb with a command for records and stores, or an editor by debugpy."""

from __future__ import annotations

import pdb
import sys
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import IO

from typing_extensions import override

from penstock.topology.errors import ConfigError, StreamsError

from .own_code import OwnCode, stopping_at_first_call
from .shown_records import Mask

_USAGE = "penstock record | penstock stores | penstock store NAME [KEY] | penstock sent"


class RecordPdb(pdb.Pdb):
    """pdb that stops in the user's code only, masks what it shows, and has the command ``penstock``.

    show(words): returns the lines of the command for its words, or raises StreamsError.
    """

    def __init__(
        self,
        own: OwnCode,
        mask: Mask,
        show: Callable[[list[str]], list[str] | None],
        stdin: IO[str] | None,
        stdout: IO[str],
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout, nosigint=True)
        if stdin is not None:
            self.use_rawinput = False
        self._own, self._mask, self._show = own, mask, show
        #: Whether it has stopped at all.
        self.has_stopped = False

    def run_record(self, process: Callable[[], None]) -> None:
        """Process a record, and stop in the first function of the user that it reaches."""
        with stopping_at_first_call(self._own, self._start):
            try:
                process()
            finally:
                sys.settrace(None)

    @property
    def was_quit(self) -> bool:
        """Whether the user has ended the session before the record was processed."""
        return self.has_stopped and self.quitting

    def _start(self, frame: FrameType) -> None:
        self.has_stopped = True
        self.set_trace(frame)

    @override
    def stop_here(self, frame: FrameType) -> bool:
        return self._own.has(frame) and super().stop_here(frame)

    def do_penstock(self, arg: str) -> None:
        """penstock record | stores | store NAME [KEY] | sent

        Show the record, the stores of the task, rows of a store, or the records that would have been written so far.
        """
        try:
            lines = self._show(arg.split(maxsplit=2))
        except StreamsError as error:
            self.error(str(error))
            return
        for line in [f"Usage: {_USAGE}"] if lines is None else lines:
            self.message(line)

    # -- masks: everything that shows a value goes through one of these

    def _getval(self, arg: str) -> object:
        return self._mask(super()._getval(arg))

    def _getval_except(self, arg: str, frame: FrameType | None = None) -> object:
        return self._mask(super()._getval_except(arg, frame))

    @override
    def displayhook(self, obj: object) -> None:
        super().displayhook(None if obj is None else self._mask(obj))

    @override
    def do_args(self, arg: str) -> None:
        """a(rgs): print the arguments of the current function."""
        frame = self.curframe
        assert frame is not None, "it is called at a stop"
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
        for name in code.co_varnames[:count]:
            if name in frame.f_locals:
                self.message(f"{name} = {self._mask(frame.f_locals[name])!r}")

    do_a = do_args

    @override
    def do_retval(self, arg: str) -> None:
        """retval: print the return value of the function that has just returned."""
        frame = self.curframe
        if frame is None or "__return__" not in frame.f_locals:
            self.error("Not yet returned!")
            return
        self.message(repr(self._mask(frame.f_locals["__return__"])))

    do_rv = do_retval

    @override
    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        text = super().format_stack_entry(frame_lineno, lprefix)
        variables = frame_lineno[0].f_locals
        if "__return__" not in variables:
            return text
        place, separator, source = text.partition(lprefix)
        return f"{place.partition('->')[0]}->{self._mask(variables['__return__'])!r}{separator}{source}"


class Editor:
    """A debugger in another program, which attaches to a port of this host. Raises ConfigError without debugpy."""

    def __init__(self, own: OwnCode, port: int) -> None:
        try:
            debugpy = import_module("debugpy")
            import_module("debugpy.server.api")  # makes its pydevd importable
            pydevd = import_module("pydevd")
        except ImportError as error:
            raise ConfigError(f"--port needs debugpy: pip install debugpy ({error}).") from error
        self._own, self._settrace = own, pydevd.settrace
        self.has_stopped = False
        try:
            debugpy.listen(("127.0.0.1", port))
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"debugpy cannot listen on port {port}: {error}. Choose another one.") from error
        self._wait: Callable[[], None] = debugpy.wait_for_client

    def run_record(self, process: Callable[[], None]) -> None:
        """Wait for the editor, then process a record, and stop in the first function of the user that it reaches."""
        self._wait()
        with stopping_at_first_call(self._own, self._stop):
            process()

    @property
    def was_quit(self) -> bool:
        """Always False: an editor that detaches lets the record be processed."""
        return False

    def _stop(self, frame: FrameType) -> None:
        self.has_stopped = True
        # debugpy.breakpoint() would stop in this function
        self._settrace(suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame)

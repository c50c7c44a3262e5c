"""Groups related lines, so that a traceback is one log record."""

from __future__ import annotations

#: Maximum length of a record, in lines; the rest starts another.
BLOCK_LINES_MAX = 500
_TRACEBACK = "Traceback (most recent call last):"
#: Between the tracebacks of two exceptions, one of which led to the other.
_CHAINED = ("During handling of the above exception,", "The above exception was the direct cause of")
#: The interpreter's last message: all following lines are part of it.
_FATAL = "Fatal Python error:"


class TextBlocks:
    """Groups lines: a traceback with its last line, indented lines with the line above."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        #: Whether more lines must follow, no matter how late.
        self._open = False

    def add(self, line: str) -> str | None:
        """Add a line. If it begins a new block, return the completed previous one, if any."""
        done = None
        if not self._continues(line) or len(self._lines) >= BLOCK_LINES_MAX:
            done = self.take()
        self._lines.append(line)
        self._open = self._stays_open(line)
        return done

    def pause(self) -> str | None:
        """Return the block that is complete if no line follows for now."""
        return None if self._open else self.take()

    def take(self) -> str | None:
        """Return the current block, complete or not; None if it is empty."""
        block = "\n".join(self._lines) if self._lines else None
        self._lines = []
        self._open = False
        return block

    def _continues(self, line: str) -> bool:
        return self._open or (bool(self._lines) and (not line or line[0] in " \t" or line.startswith(_CHAINED)))

    def _stays_open(self, line: str) -> bool:
        if line.startswith((_TRACEBACK, _FATAL)) or (line.startswith(_CHAINED) and len(self._lines) > 1):
            return True
        if not self._open:
            return False
        # A traceback ends with the first line that is not indented, unless a chained one follows.
        return self._lines[0].startswith(_FATAL) or not line or line[0] in " \t"

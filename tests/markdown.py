"""Runs the fenced blocks of documentation pages in order, and compares results with those on the pages.

The promises of a python block that are checked:

- ``expression  # -> value``, also on the next line or lines: the value's repr, whitespace aside
- a ``text`` block right behind a python block: its output (behind a ``sh`` block: see first_steps.py)
- a function of one parameter, ``builder``, declares a topology that runs, even if no statement of the page calls it
- a first line ``# name.py`` or ``# name.toml`` makes a block a file of that name, for later blocks
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import StreamsBuilder
from penstock.testing import TopologyTestDriver

_FENCE = re.compile(r"^```(\S*)[ \t]*(.*)$")
_PROMISE = re.compile(r"#\s*->\s?(.*)$")
_FILE_NAME = re.compile(r"#\s*(\w+\.(?:py|toml))\s*$")

#: A block that names this address needs a broker there.
BROKER_ADDRESS = ':9092"'


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: language, text, number of the first line, and the language of the block directly before it."""

    language: str
    text: str
    line: int
    follows: str | None

    @property
    def file_name(self) -> str | None:
        """The name of the block's file, None if it is not a file."""
        found = _FILE_NAME.match(self.text.partition("\n")[0])
        return found and found.group(1)

    @property
    def needs_broker(self) -> bool:
        """True if the block is a program that connects to a broker."""
        return self.language == "python" and BROKER_ADDRESS in self.text


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page in order; raises ValueError for an unclosed fence."""
    found: list[Block] = []
    lines: list[str] = []
    language, start, before = None, 0, None
    for number, line in enumerate(page.splitlines(), start=1):
        fence = _FENCE.match(line)
        if language is None and fence is None:
            before = None if line.strip() else before
        elif language is None and fence is not None:
            language, lines, start = fence.group(1), [], number + 1
        elif fence is not None and not fence.group(1):
            found.append(Block(str(language), "\n".join(lines) + "\n", start, before))
            language, before = None, language
        else:
            lines.append(line)
    if language is not None:
        raise ValueError(f"the block that begins at line {start - 1} is not closed")
    return found


def prose(page: str) -> str:
    """Return a page without its fenced blocks."""
    lines: list[str] = []
    inside = False
    for line in page.splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


class Page:
    """Runs the blocks of a page in one namespace; files of the page are written to the working directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks = blocks(path.read_text())
        self.checked = 0
        self._namespace: dict[str, Any] = {"__name__": f"page_{path.stem.replace('-', '_')}"}
        self._printed = ""

    def write_files(self, directory: Path) -> None:
        """Write the files of the page, also those that a later block of the same name replaces."""
        for block in self.blocks:
            if block.file_name is not None:
                (directory / block.file_name).write_text(block.text)

    def commands(self, *beginnings: str) -> list[str]:
        """Return the lines with this prefix from its shell blocks and indented blocks."""
        shell = [line for block in self.blocks if block.language == "sh" for line in block.text.splitlines()]
        indented = [line.strip() for line in prose(self.path.read_text()).splitlines() if line.startswith("    ")]
        return [line for line in shell + indented if line.startswith(beginnings)]

    def run(self) -> None:
        """Run all blocks that need no broker; raises AssertionError for a wrong result."""
        # Dataclasses and pickle find the module of a class by name.
        module = type(sys)(self._namespace["__name__"])
        module.__dict__.update(self._namespace)
        self._namespace = module.__dict__
        sys.modules[module.__name__] = module
        try:
            for block in self.blocks:
                self._run_block(block)
        finally:
            del sys.modules[module.__name__]

    def _run_block(self, block: Block) -> None:
        if block.file_name is not None:
            Path(block.file_name).write_text(block.text)
        if block.language == "python" and not block.needs_broker:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                self._run_python(block)
                self._run_declarations(block)
            self._printed = printed.getvalue()
        elif block.language == "text" and block.follows == "python":
            self.checked += 1
            assert _stripped(self._printed) == _stripped(block.text), f"{self._where(block, 0)} was not printed so"

    def _run_declarations(self, block: Block) -> None:
        """Call the functions that declare topologies with a builder, and start these topologies."""
        for statement in ast.parse(block.text).body:
            if isinstance(statement, ast.FunctionDef) and ast.unparse(statement.args) == "builder":
                builder = StreamsBuilder()
                self._namespace[statement.name](builder)
                TopologyTestDriver(builder.build()).close()

    def _run_python(self, block: Block) -> None:
        tree = ast.parse(block.text)
        lines = block.text.splitlines()
        promises = set(_promise_lines(block.text))
        for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
            end = statement.end_lineno or statement.lineno
            until = len(lines) if following is None else following.lineno - 1
            promise, used = _promise(lines, end, until)
            promises -= used
            self.checked += isinstance(statement, ast.Assert) or promise is not None
            where = f"{self.path.name}:{block.line + statement.lineno - 1}"
            if promise is not None and isinstance(statement, ast.Expr):
                code = compile(ast.Expression(statement.value), where, "eval", dont_inherit=True)
                value = repr(eval(code, self._namespace))
                assert _squeezed(value) == _squeezed(promise), f"{where} gives {value}, not {promise}"
            else:
                assert promise is None, f"{where}: only an expression can promise a value"
                exec(compile(ast.Module([statement], []), where, "exec", dont_inherit=True), self._namespace)
        assert not promises, f"{self._where(block, min(promises) - 1)}: a promise that belongs to no statement"

    def _where(self, block: Block, line: int) -> str:
        return f"{self.path.name}:{block.line + line}"


def _promise_lines(text: str) -> Iterator[int]:
    yield from (number for number, line in enumerate(text.splitlines(), start=1) if _PROMISE.search(line))


def _promise(lines: list[str], end: int, until: int) -> tuple[str | None, set[int]]:
    """Return the value promised in the lines after a statement, None if there is none, and the line numbers."""
    numbers = [end] if _PROMISE.search(lines[end - 1]) else [end + 1]
    if numbers[0] > until or not (first := _PROMISE.search(lines[numbers[0] - 1])):
        return None, set()
    parts = [first.group(1)]
    for number in range(numbers[0] + 1, until + 1):
        line = lines[number - 1].strip()
        if not line.startswith("#") or _PROMISE.search(line):
            break
        parts.append(line[1:])
        numbers.append(number)
    return " ".join(parts), set(numbers)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())

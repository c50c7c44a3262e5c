"""Counts which rare branches of the code were reached: exception handlers, raised errors, warnings.

They are found in the source, so new ones appear in the table. While they are counted, functions with such branches run
instrumented code, compiled from the same source with a call in each branch; line numbers do not change. (A trace
function would not work: strands are greenlets, which have no separate trace function.)
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: The stream thread and its group; tasks; restore; commits; the producer.
MODULES = (
    "thread.stream_thread", "group.rebalancer", "group.rebalance_listener", "restore.store_changelog_reader",
    "tasks.task_manager", "tasks.task_commits", "tasks.assigned_tasks", "tasks.assigned_streams_tasks", "tasks.task",
    "tasks.stream_task", "tasks.standby_task", "tasks.global_state", "tasks.task_timeouts", "tasks.committer",
    "tasks.changelog_bounds", "tasks.processor_state_manager", "tasks.streams_producer", "tasks.record_collector",
)  # fmt: skip
#: The logger methods for problems.
LEVELS = ("warning", "error", "exception", "critical")
#: Length of the prefix by which a message is identified.
MESSAGE_LENGTH = 48
#: The function that the compiled branches call.
_CALL = "__reached__"


@dataclass(frozen=True, order=True)
class Branch:
    """A rare branch of a module of penstock.workers. what: its condition or message, which rarely changes."""

    module: str
    function: str
    what: str

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.function}: {self.what}"


class Marking(ast.NodeTransformer):
    """Puts a call into each rare branch, and records which call belongs to which branch."""

    def __init__(self, module: str) -> None:
        self.branches: list[Branch] = []
        self._module = module
        self._functions: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named:
            self._functions.append(node.name)  # type: ignore[attr-defined]
        self.generic_visit(node)
        if isinstance(node, ast.ExceptHandler):
            caught = "BaseException" if node.type is None else ast.unparse(node.type)
            node.body.insert(0, self._call(node, f"except {caught}"))
        for body in _bodies(node):
            body[:] = [each for statement in body for each in self._marked(statement, body)]
        if named:
            self._functions.pop()
        return node

    def _marked(self, statement: ast.stmt, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        what = _rare(statement)
        if what is None or (len(body) > 1 and body[1] is statement and _is_call(body[0])):
            return [statement]  # the handler that it begins is counted
        return [self._call(statement, what), statement]

    def _call(self, place: ast.AST, what: str) -> ast.stmt:
        branch = Branch(self._module, ".".join(self._functions), what)
        known = [other.what.partition(" #")[0] for other in self.branches if other.function == branch.function]
        twins = known.count(what)
        if twins:
            branch = Branch(branch.module, branch.function, f"{what} #{twins + 1}")
        self.branches.append(branch)
        call = ast.Call(ast.Name(_CALL, ast.Load()), [ast.Constant(str(branch))], [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), place))


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list):
            yield body


def _is_call(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Name(name))):
            return name == _CALL
    return False


def _rare(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Raise(None):
            return "raise again"
        case ast.Raise(ast.Call(raised)) | ast.Raise(raised) if raised is not None:
            return f"raise {ast.unparse(raised)}"
        case ast.Expr(ast.Call(ast.Attribute(_, level), [*arguments])) if level in LEVELS:
            message = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else ""
            return f"{level} {str(message)[:MESSAGE_LENGTH]!r}"
    return None


class RareBranches:
    """The rare branches of some modules of penstock.workers."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        self.branches: list[Branch] = []
        self._codes: dict[FunctionType, CodeType] = {}
        self._modules: list[ModuleType] = []
        for name in modules:
            self._take(importlib.import_module(f"penstock.workers.{name}"), name.rpartition(".")[2])

    def _take(self, module: ModuleType, name: str) -> None:
        assert module.__file__ is not None
        marking = Marking(name)
        tree = marking.visit(ast.parse(Path(module.__file__).read_text()))
        codes = dict(_codes(compile(tree, module.__file__, "exec")))
        self._modules.append(module)
        for function in _functions(module):
            self._codes[function] = codes[function.__code__.co_qualname, function.__code__.co_firstlineno]
        self.branches += marking.branches

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """Yield a counter that grows, by str(branch), whenever a branch is reached."""
        reached: Counter[str] = Counter()
        before = {function: function.__code__ for function in self._codes}
        for module in self._modules:
            setattr(module, _CALL, lambda branch: reached.update((branch,)))
        for function, code in self._codes.items():
            function.__code__ = code
        try:
            yield reached
        finally:
            for function, code in before.items():
                function.__code__ = code
            for module in self._modules:
                delattr(module, _CALL)


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Yield all code in a module's code by name and first line."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions and methods defined in a module."""
    for value in vars(module).values():
        members = vars(value).values() if inspect.isclass(value) and value.__module__ == module.__name__ else [value]
        for member in members:
            for function in _unwrapped(member):
                if function.__module__ == module.__name__ and function.__code__.co_filename == module.__file__:
                    yield function


def _unwrapped(member: Any) -> Iterator[FunctionType]:
    candidates: list[Callable[..., Any] | None] = [member]
    if isinstance(member, property):
        candidates = [member.fget, member.fset]
    elif isinstance(member, classmethod | staticmethod):
        candidates = [member.__func__]
    for candidate in candidates:
        function = inspect.unwrap(candidate) if callable(candidate) else candidate
        if isinstance(function, FunctionType):
            yield function

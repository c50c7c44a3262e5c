"""Objects sent to another process behave there as here, or are refused: real programs, two processes each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.examples import one_of

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[2]
HEAD = """\
import abc, dataclasses, enum, functools, json, pickle, subprocess, sys, typing
from dataclasses import MISSING, dataclass, field
from typing import *
import msgspec
from sentinels import NOTHING, ONLY, REGISTRY, only
from penstock.supervisor.source.pickling import dumps
T = TypeVar("T")

def read(kind, text):
    try:
        return repr(msgspec.json.decode(text, type=kind))
    except (msgspec.ValidationError, TypeError) as error:
        return repr(error)
"""
#: An importable module.
SENTINELS = """\
import functools
NOTHING, REGISTRY = object(), {}
@functools.cache
def only(): return object()
ONLY = only()
"""
#: Calls probe here, sends it to a process without a main module, and has it called there.
TAIL = """
here = probe()
there = subprocess.run(
    [sys.executable, "-c", "import sys; from penstock.supervisor.source.pickling import loads\\n"
     "print(loads(sys.stdin.buffer.read())())"],
    input=dumps(probe), capture_output=True)
assert there.returncode == 0, there.stderr.decode()
print(json.dumps([str(here), there.stdout.decode().rstrip()]))
"""


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "sentinels.py").write_text(SENTINELS)
    path = os.pathsep.join([str(ROOT), str(folder)])
    return subprocess.run(
        [sys.executable, "-"],
        input=program,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )


def both(folder: Path, definitions: str, head: str = HEAD) -> list[str]:
    """Return the results of a program's ``probe()``, here and in the process that it was sent to."""
    ended = run(folder, head + textwrap.dedent(definitions) + TAIL)
    assert ended.returncode == 0, ended.stderr
    found: list[str] = json.loads(ended.stdout)
    return found


#: name -> the main module of a program; probe() is called in both processes.
PROGRAMS = {
    "struct": """
        class S(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
            first_name: str
            numbers: list[int] = []
            other: dict[str, int] = msgspec.field(default_factory=lambda: {"a": 1}, name="OTHER")
            def loud(self): return self.first_name.upper()
        def probe():
            made = S("x")
            return read(S, b'{"firstName": "y"}'), read(S, b'{}'), read(S, b'{"z": 1}'), made, made.loud()
    """,
    "struct of options": """
        class Base(msgspec.Struct, tag=True, tag_field="kind", kw_only=True, weakref=True):
            x: int = 3
        class Cat(Base, frozen=True, order=True, cache_hash=True, dict=True): y: int
        class Dog(Base, array_like=True, omit_defaults=True): y: int = 1
        class Plain(msgspec.Struct, gc=False): n: int = 1
        def probe():
            try: Cat(1, x=2).y = 3
            except AttributeError as error: frozen = repr(error)
            written = [msgspec.json.encode(one) for one in (Cat(1), Dog(), Dog(2, x=4), Plain())]
            return frozen, Cat(1) < Cat(2), len({Cat(1), Cat(1)}), written, read(Cat | Base, b'{"kind": "Cat", "y": 1}')
    """,
    "generic struct": """
        class Page(msgspec.Struct, Generic[T]): items: list[T]; more: bool = False
        class Numbers(Page[int]): total: int = 0
        def probe():
            texts = b'{"items": [1]}', b'{"items": ["a"]}'
            return [read(kind, text) for kind in (Page[int], Numbers) for text in texts], Numbers([1])
    """,
    "struct with __post_init__": """
        class Base(msgspec.Struct):
            n: int
            LIMIT: ClassVar[int] = 9
            def __post_init__(self):
                if self.n > type(self).LIMIT: raise ValueError(f"{self.n} is too much")
        class Sub(Base):
            m: int = 0
            def __post_init__(self): super().__post_init__(); self.m = self.n + 1
        class Quiet(Sub): pass
        def probe(): return [read(kind, b'{"n": %d}' % n) for kind in (Base, Sub, Quiet) for n in (1, 10)]
    """,
    "recursive structs": """
        class Node(msgspec.Struct):
            name: Annotated[str, "what it is called"]
            kids: list["Node"] = []
            kind: Literal["an oak", "a beech"] = "an oak"
            def tree(self): return Tree(self)
        class Tree(msgspec.Struct):
            root: Node
            def first(self): return Node(self.root.name).tree()
        def probe(): return read(Tree, b'{"root": {"name": "a", "kids": [{"name": "b"}]}}'), Tree(Node("x")).first()
    """,
    "classes of functions and classes": """
        def make(kind):
            class Local(msgspec.Struct):
                value: str
                of: ClassVar[Any] = kind
                class Inner(msgspec.Struct): n: int = 1
                def inner(self): return Local.Inner(2)
            return Local
        OfText = make(str)
        class Outer:
            class Inner(msgspec.Struct): n: int = 1
            @dataclass
            class Data: n: int = 1
        def probe():
            made = OfText("a")
            return read(OfText, b'{"value": 1}'), made, made.inner(), made.of, Outer.Inner(), Outer.Data()
    """,
    "dataclass": """
        @dataclass
        class D:
            n: int
            names: list[str] = field(default_factory=list)
            kind: ClassVar[str] = "d"
        @dataclass(slots=True, frozen=True, kw_only=True)
        class E(Generic[T]): n: T; m: int = 2
        def probe():
            read(D, b'{"n": 1}')
            try: D()
            except TypeError as error: missing = repr(error)
            fields = [(f.name, f.default is MISSING) for kind in (D, E) for f in dataclasses.fields(kind)]
            found = read(D, b'{"n": 1}'), read(D, b'{}'), read(E[int], b'{"n": 1}')
            return missing, fields, found, dataclasses.replace(D(1), n=2)
        probe()
    """,
    "named tuple and typed dict": """
        class N(NamedTuple):
            n: int
            m: str = "x"
            def both(self): return self.m * self.n
        class D(TypedDict, total=False):
            n: Required[int]
            m: NotRequired[str]
        class Pair(NamedTuple, Generic[T]): left: T; right: T
        def probe():
            found = read(D, b'{"n": 1}'), read(D, b'{"m": "a"}'), read(Pair[int], b'[1, "a"]')
            return read(N, b'[2]'), N(2).both(), read(N, b'[]'), found
        probe()
    """,
    "enum": """
        class Color(enum.Enum):
            RED = 1
            GREEN = 2
            CRIMSON = 1
            @property
            def warm(self): return self is Color.CRIMSON
        class Planet(enum.Enum):
            EARTH = (5.9, 6.3)
            MARS = (0.6, 3.4)
            def __init__(self, mass, radius): self.mass = mass; self.radius = radius
        class Level(str, enum.Enum):
            LOW = "low", 1
            def __new__(cls, text, number):
                made = str.__new__(cls, text); made._value_ = text; made.number = number
                return made
        class Access(enum.Flag): READ = 1; WRITE = 2; ALL = 3
        class Name(enum.StrEnum): A = enum.auto()
        def probe():
            found = read(Name, b'"a"'), read(Name, b'"b"'), read(Level, b'"low"')
            planets = Planet.MARS.radius, Planet((5.9, 6.3))
            others = Level.LOW.number, Level("low"), Access.ALL, Access(3) is Access.ALL, Name.A
            return list(Color.__members__), Color["CRIMSON"].warm, planets, others, found
        probe()
    """,
    "new type, cached and decorated functions, closures": """
        Sku = NewType("Sku", str)
        class Line(msgspec.Struct): sku: Sku
        @functools.cache
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        @functools.lru_cache(maxsize=2, typed=True)
        def kind(n): return type(n).__name__
        def loud(function):
            @functools.wraps(function)
            def wrapped(*arguments): return function(*arguments).upper()
            return wrapped
        @loud
        def greet(name, ending=MISSING, other=NOTHING): return f"hello {name} {ending is MISSING} {other is NOTHING}"
        def over(line): return lambda: Line(line.sku + "!")
        closed = over(Line("a"))
        def probe():
            cached = fib(50), kind(1), kind.cache_parameters(), kind.__name__
            return cached, only() is ONLY, greet("you"), greet.__name__, closed(), read(Line, b'{"sku": 1}')
    """,
    "classes with a metaclass": """
        class Meta(type):
            def __new__(meta, name, bases, namespace):
                made = super().__new__(meta, name, bases, namespace)
                made.fields = {**getattr(made, "fields", {}), **namespace.get("__annotations__", {})}
                return made
        class Model(metaclass=Meta):
            def __init__(self, **values): vars(self).update((name, values[name]) for name in self.fields)
            def __repr__(self): return str(vars(self))
        class Order(Model): n: int; m: str
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
        class Square(Shape):
            def area(self): return 4
        Shape.register(Order)
        class HasArea(Protocol):
            def area(self): ...
        def probe():
            made = Order(n="1", m=2)
            return made, Square().area(), isinstance(made, Shape), Order.__mro__[1].__name__
    """,
    "objects of the classes go back": """
        class S(msgspec.Struct): n: int
        def probe(): return S(2) == pickle.loads(pickle.dumps(S(2)))
    """,
}


@pytest.mark.parametrize("name", one_of(4, PROGRAMS))
@pytest.mark.parametrize("annotations", ["objects", "texts"])
def test_an_object_behaves_the_same_in_both_processes(tmp_path: Path, name: str, annotations: str) -> None:
    future = "from __future__ import annotations\n" if annotations == "texts" else ""
    here, there = both(tmp_path, PROGRAMS[name], future + HEAD)
    assert here == there


def test_a_class_that_would_lose_its_fields_is_refused(tmp_path: Path) -> None:
    program = """
        class Meta(type):
            def __new__(meta, name, bases, namespace):
                made = super().__new__(meta, name, bases, dict(namespace))
                REGISTRY[name] = [field for field in namespace if not field.startswith("_")]
                return made
            @property
            def fields(cls): return REGISTRY[cls.__name__]
        class Order(metaclass=Meta): n = 0
        def probe(): return Order.fields
    """
    ended = run(tmp_path, HEAD + textwrap.dedent(program) + TAIL)
    assert (
        "TypeError: the class Order of __main__ cannot be sent to another process: its fields would be () there, not "
        "('n',). Put it into a module, and import it from there" in ended.stderr
    )

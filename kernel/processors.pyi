from collections.abc import Callable
from typing import TypeVar

from penstock.kernel.messages import _Headers

_Record = TypeVar("_Record")

def with_field(record: type[_Record], place: int) -> Callable[[_Record, object], _Record]: ...
def record_maker(record: type[_Record]) -> Callable[[object, object, int, _Headers], _Record]: ...

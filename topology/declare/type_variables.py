"""The type variables of the DSL: keys and values of a stream or table, of results, and of the other side of a join."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeVar

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
KR = TypeVar("KR", default=Any)
VR = TypeVar("VR", default=Any)
KO = TypeVar("KO", default=Any)
VO = TypeVar("VO", default=Any)

"""The type variables of the DSL: keys and values of a stream or table, of results, and of the other side of a join."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
KR = TypeVar("KR")
VR = TypeVar("VR")
KO = TypeVar("KO")
VO = TypeVar("VO")

"""The type variables of keys, values and results.

Without parameters they are Any.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeVar

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
KR = TypeVar("KR", default=Any)
VR = TypeVar("VR", default=Any)
KO = TypeVar("KO", default=Any)
VO = TypeVar("VO", default=Any)
#: Of values that are never changed in place, so that one of a derived type will do.
K_co = TypeVar("K_co", covariant=True, default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)
#: The result of a function, a query or an aggregate.
R = TypeVar("R", default=Any)
R_co = TypeVar("R_co", covariant=True, default=Any)

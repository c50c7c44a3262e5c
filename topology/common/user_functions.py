"""The functions that users pass, by the names of Kafka Streams' interfaces. Their keys and values are the serdes'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..type_variables import R

#: Returns the aggregate of no records.
Initializer = Callable[[], Any]
#: (key, value, aggregate) -> aggregate; for sessions (key, aggregate, other aggregate) -> aggregate.
Aggregator = Callable[[Any, Any, Any], Any]
#: (aggregate, value) -> aggregate.
Reducer = Callable[[Any, Any], Any]
#: (key, value) -> result.
KeyValueMapper = Callable[[Any, Any], R]
#: (key, value) -> whether a record passes.
Predicate = KeyValueMapper[object]
#: (value, value of the other side) -> result.
ValueJoiner = Callable[[Any, Any], Any]

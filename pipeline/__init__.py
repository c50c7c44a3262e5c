"""The same topology on Spark through PySpark: SparkStreams runs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "penstock.pipeline":
    raise ImportError("import penstock.pipeline, not pipeline: run `pip install -e .` first")

if TYPE_CHECKING:
    from .spark_streams import SparkStreams

__all__ = ["SparkStreams"]


def __getattr__(name: str) -> Any:
    """Import on request: Spark's executors import modules of this package, and must not need the driver's."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".spark_streams", __name__), name)

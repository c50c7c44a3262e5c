"""The compiled kernel: what is done for each record, in C. Optional; docs/kernel.md says when it is there.

Its modules are None where they are not built, or with ``PENSTOCK_KERNEL=off``. Nothing depends on them but speed: what
they do stands in Python too, where they are used.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

if __name__ != "penstock.kernel":
    raise ImportError("import penstock.kernel, not kernel: run `pip install -e .` first")

#: ``off``: do without the compiled code.
VARIABLE = "PENSTOCK_KERNEL"


def _load(name: str) -> Any:
    if os.environ.get(VARIABLE) == "off":
        return None
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:  # not built here
        return None


#: The cells of record caches; a loop's way through a batch of messages; records straight from librdkafka.
cells: Any = _load("cells")
messages: Any = _load("messages")
fetch: Any = _load("fetch")

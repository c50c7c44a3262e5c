from collections.abc import Callable
from typing import Any, final

class Conversion:
    def __call__(self, value: Any) -> Any: ...

@final
class Guarded(Conversion):
    @property
    def __wrapped__(self) -> Callable[[Any], Any]: ...
    def __init__(
        self,
        function: Callable[[Any], Any],
        refuse: Callable[[Any, Exception], object],
        translate: Conversion | None = None,
    ) -> None: ...

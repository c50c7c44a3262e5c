"""The part of KStream that joins (docs/joins.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack, cast, overload

from ..stores.windows import JoinWindows
from ..type_variables import KO, VO, VR, K, V
from .abstract_stream import AbstractStream
from .options import StreamJoinedOptions, StreamJoinOptions, TableJoinedOptions, shows_options

if TYPE_CHECKING:
    from .global_ktable import GlobalKTable
    from .kstream import KStream
    from .ktable import KTable


class JoiningStream(AbstractStream, Generic[K, V]):
    """The joins of a KStream. Each has a signature for each kind of other side, and for a joiner with the key."""

    @overload
    def join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V, VO], VR],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = False,
        **options: Unpack[StreamJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[K, V, VO], VR],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[StreamJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], VR],
        *,
        with_key: Literal[False] = False,
        **options: Unpack[TableJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[K, V, VO], VR],
        *,
        with_key: Literal[True],
        **options: Unpack[TableJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[V, VO], VR],
        *,
        key_selector: Callable[[K, V], KO | None],
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[K, V, VO], VR],
        *,
        key_selector: Callable[[K, V], KO | None],
        with_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        key_selector: Callable[[K, V], KO | None],
        joiner: Callable[[V, VO], VR],
        /,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        key_selector: Callable[[K, V], KO | None],
        joiner: Callable[[K, V, VO], VR],
        /,
        *,
        with_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[K, KO, V, VO], VR],
        *,
        key_selector: Callable[[K, V], KO | None],
        with_mapped_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        key_selector: Callable[[K, V], KO | None],
        joiner: Callable[[K, KO, V, VO], VR],
        /,
        *,
        with_mapped_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @shows_options(StreamJoinOptions, with_key=False, with_mapped_key=False)
    def join(
        self,
        other: KStream[K, Any] | KTable[K, Any] | GlobalKTable,
        joiner: Callable[..., object],
        windows: JoinWindows | Callable[..., object] | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, Any]:
        """Join with a stream, a table or a global table; records without a counterpart are dropped.

        joiner(left, right) -> value, or with with_key joiner(key, left, right). Options: with_key, name, key_serde,
        value_serde (of this stream), other_value_serde; and

        - with a stream: windows (JoinWindows) sets how far apart records may be; store is the base name of both window
          stores, or a Materialized with their store type and logging; this_store and other_store are suppliers
        - with a table: grace, how long records wait for updates of a versioned table (``timedelta`` or ms)
        - with a global table: key_selector(key, value) -> its key; ``join(table, key_selector, joiner)`` works too;
          with_mapped_key: joiner(key, selected key, left, right) -> value (KIP-1340)
        """
        return self._join(other, joiner, windows, "inner", options)

    @overload
    def left_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V, VO | None], VR],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = False,
        **options: Unpack[StreamJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[K, V, VO | None], VR],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[StreamJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], VR],
        *,
        with_key: Literal[False] = False,
        **options: Unpack[TableJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[K, V, VO | None], VR],
        *,
        with_key: Literal[True],
        **options: Unpack[TableJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[V, VO | None], VR],
        *,
        key_selector: Callable[[K, V], KO | None],
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[K, V, VO | None], VR],
        *,
        key_selector: Callable[[K, V], KO | None],
        with_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        key_selector: Callable[[K, V], KO | None],
        joiner: Callable[[V, VO | None], VR],
        /,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        key_selector: Callable[[K, V], KO | None],
        joiner: Callable[[K, V, VO | None], VR],
        /,
        *,
        with_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[K, KO | None, V, VO | None], VR],
        *,
        key_selector: Callable[[K, V], KO | None],
        with_mapped_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        key_selector: Callable[[K, V], KO | None],
        joiner: Callable[[K, KO | None, V, VO | None], VR],
        /,
        *,
        with_mapped_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, VR]: ...
    @shows_options(StreamJoinOptions, with_key=False, with_mapped_key=False)
    def left_join(
        self,
        other: KStream[K, Any] | KTable[K, Any] | GlobalKTable,
        joiner: Callable[..., object],
        windows: JoinWindows | Callable[..., object] | None = None,
        **options: Unpack[StreamJoinOptions],
    ) -> KStream[K, Any]:
        """Join like join(), but keep records of this stream without a counterpart: right is None for them.

        joiner(left, right), key_selector(key, value), windows and options are those of join().
        """
        return self._join(other, joiner, windows, "left", options)

    @overload
    def outer_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V | None, VO | None], VR],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = False,
        **options: Unpack[StreamJoinedOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def outer_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[K, V | None, VO | None], VR],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[StreamJoinedOptions],
    ) -> KStream[K, VR]: ...
    @shows_options(StreamJoinedOptions)
    def outer_join(
        self,
        other: KStream[K, Any],
        joiner: Callable[..., object],
        windows: JoinWindows,
        *,
        with_key: bool = False,
        **options: Unpack[StreamJoinedOptions],
    ) -> KStream[K, Any]:
        """Join with a stream, but keep records of both without a counterpart: the other is None for them.

        joiner(left, right), windows and options are those of join() with a stream.
        """
        return self._join(other, joiner, windows, "outer", {**options, "with_key": with_key})

    def _join(
        self, other: object, joiner: Callable[..., object], windows: Any, kind: str, options: Mapping[str, object]
    ) -> KStream[K, Any]:
        from .kstream_joins import join

        return join(cast("KStream[K, V]", self), other, joiner, windows, kind, options)

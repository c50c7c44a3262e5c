"""Splitting a stream into branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from typing_extensions import override

from ..common.arguments import check_function
from ..common.naming import Named, validate_name
from ..common.user_functions import Predicate
from ..errors import TopologyError
from ..graph.graph_nodes import ProcessorGraphNode
from ..graph.internal_topology_builder import InternalTopologyBuilder
from ..operators.stateless import KStreamBranch, PassThrough
from ..type_variables import K, V

if TYPE_CHECKING:
    from .kstream import KStream


class _BranchNode(ProcessorGraphNode):
    """The node that splits a stream; its branches are known only when it is written."""

    def __init__(self, node_name: str) -> None:
        super().__init__(node_name, PassThrough())
        self.predicates: list[Predicate] = []
        self.branch_names: list[str] = []

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        self.operator = KStreamBranch(self.predicates, self.branch_names)
        super().write_to(topology)


class BranchedKStream(dict[str, "KStream[K, V]"], Generic[K, V]):
    """The branches of a stream, by their names (Kafka Streams: BranchedKStream).

    Unnamed branches are numbered from "1", an unnamed default branch is "0". Kafka Streams' longer keys, prefixed with
    the name of the split, work too.
    """

    def __init__(self, source: KStream[K, V], name: str | None) -> None:
        super().__init__()
        self._source = source
        self._node = _BranchNode(Named(name).or_generate(source.builder, "KSTREAM-BRANCH-"))
        self._has_default = False
        source.builder.add_graph_node(source.graph_node, self._node)

    def branch(
        self,
        predicate: Callable[[K, V], object],
        name: str | None = None,
        *,
        with_function: Callable[[KStream[K, V]], KStream | None] | None = None,
        with_consumer: Callable[[KStream[K, V]], object] | None = None,
    ) -> BranchedKStream[K, V]:
        """Add a branch for the records for which predicate(key, value) holds and no earlier one did.

        with_function maps the branch's stream to the one returned under its name; with_consumer consumes it, and the
        result has no entry for the branch.
        """
        if self._has_default:
            raise TopologyError(f"{self._node.node_name}: the default branch must be the last one")
        check_function(predicate, f"{self._node.node_name}: the predicate of a branch")
        self._node.predicates.append(predicate)
        self._add(name, str(len(self._node.predicates)), with_function, with_consumer)
        return self

    def default_branch(
        self,
        name: str | None = None,
        *,
        with_function: Callable[[KStream[K, V]], KStream | None] | None = None,
        with_consumer: Callable[[KStream[K, V]], object] | None = None,
    ) -> BranchedKStream[K, V]:
        """Add a branch for all other records, and return all branches.

        with_function(stream) and with_consumer(stream) do what they do in branch(). Nothing may follow: TopologyError.
        """
        if self._has_default:
            raise TopologyError(f"{self._node.node_name}: there is already a default branch")
        self._has_default = True
        self._add(name, "0", with_function, with_consumer)
        return self

    def no_default_branch(self) -> BranchedKStream[K, V]:
        """Return all branches; records that match none of them are dropped."""
        return self

    def _add(
        self,
        name: str | None,
        number: str,
        with_function: Callable[[KStream[K, V]], KStream | None] | None,
        with_consumer: Callable[[KStream[K, V]], object] | None,
    ) -> None:
        check_function(with_function, f"{self._node.node_name}: with_function", optional=True)
        check_function(with_consumer, f"{self._node.node_name}: with_consumer", optional=True)
        short = number if name is None else validate_name(name)
        source, full = self._source, validate_name(self._node.node_name + short)
        self._node.branch_names.append(full)
        source.builder.new_processor_name(full)  # consumes a number, as in Kafka Streams
        node = ProcessorGraphNode(full, PassThrough())
        source.builder.add_graph_node(self._node, node)
        stream = source.same_types(node)
        if with_consumer is not None:
            with_consumer(stream)
            return
        result = stream if with_function is None else with_function(stream)
        if result is not None:
            self[short] = result

    def __missing__(self, key: str) -> KStream[K, V]:
        prefix = self._node.node_name
        if key.startswith(prefix) and key.removeprefix(prefix) in self:
            return self[key.removeprefix(prefix)]
        raise KeyError(f"there is no branch {key!r}; there are {sorted(self)}")

"""The parts of a class that must be present when another process creates it; cloudpickle sets attributes only
afterwards.

A metaclass that compiles the class statement, as msgspec's and enum's do, would not see those.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import msgspec

MAIN = "__main__"
#: msgspec's caches in classes; msgspec recreates them, and they cannot be pickled.
_MSGSPEC_CACHE = "__msgspec_cache__"
#: A field's name, its annotation, its name in the encoded message, its default, the factory of its default.
Field = tuple[str, Any, str, Any, Any]


def reduced_class(kind: type, reduced: tuple[Any, ...]) -> tuple[object, ...]:
    """Return the reduced value of a class that is sent by value.

    reduced: cloudpickle's value: (maker, its arguments, (attributes, slots), None, None, setter of the state).
    """
    make, arguments, (attributes, slots), *_, set_state = reduced
    attributes.pop(_MSGSPEC_CACHE, None)
    if own := own_annotations(kind):
        attributes.setdefault("__annotations__", own)  # from Python 3.14 on they are not among them
    definition = arguments[0]
    namespace: dict[str, object] = {"__qualname__": kind.__qualname__}
    msgspec = sys.modules.get("msgspec")  # not imported for this: the supervisor may run without it
    members: dict[str, dict[str, object]] = {}
    if msgspec is not None and isinstance(kind, type(msgspec.Struct)):
        definition = _StructDefinition.of(kind, msgspec)
        namespace |= {"__post_init__": _post_init} if "__post_init__" in vars(kind) else {}
    elif vars(kind).get("__slots__"):
        namespace["__slots__"] = vars(kind)["__slots__"]
    if issubclass(kind, enum.Enum):
        aliases = {name: member.value for name, member in kind.__members__.items()}
        arguments = (*arguments[:3], aliases, *arguments[4:])
        attributes = {name: value for name, value in attributes.items() if name not in aliases}
        members = {member.name: _attributes_of_member(member) for member in kind}
    else:
        arguments = (definition, *arguments[1:3], arguments[3] | namespace, *arguments[4:])
    state = (set_state, (attributes, slots), members, _main_names(kind))
    return make, arguments, state, None, None, _set_class


def _set_class(kind: Any, state: tuple[Callable[[type, Any], None], object, dict[str, Any], dict[str, Any]]) -> None:
    set_state, attributes, members, names = state
    vars(sys.modules[MAIN]).update(names)
    set_state(kind, attributes)
    for name, found in members.items():
        vars(kind[name]).update(found)


def _attributes_of_member(member: enum.Enum) -> dict[str, object]:
    """Return the attributes set by the class's own ``__init__`` or ``__new__``, which enum does not call again."""
    return {name: value for name, value in vars(member).items() if not name.startswith("_")}


def _main_names(kind: type) -> dict[str, object]:
    """Return the names that other code may look up in the main module for one of its classes, with their values.

    These are the class itself, when one of its objects is pickled, and the names in its string annotations.
    """
    if kind.__module__ != MAIN:
        return {}
    main = vars(sys.modules[MAIN])
    wanted = {kind.__qualname__, *_names_in(own_annotations(kind))}
    return {name: main[name] for name in wanted if name in main}


def own_annotations(kind: type) -> dict[str, Any]:
    """Return the annotations of a class itself. From Python 3.14 on a class evaluates them when they are asked for, and
    a name that is missing then stays a forward reference.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(kind, format=Format.FORWARDREF)
    return inspect.get_annotations(kind)


def _names_in(annotation: object) -> Iterator[str]:
    """Yield the names in the strings of an annotation, or of a dict of annotations."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        with contextlib.suppress(SyntaxError):  # it is not a type, e.g. a remark
            for node in ast.walk(ast.parse(annotation, mode="eval")):
                if isinstance(node, ast.Name):
                    yield node.id
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield from _names_in(node.value)
    elif isinstance(annotation, Mapping):
        for part in annotation.values():
            yield from _names_in(part)
    else:
        for part in typing.get_args(annotation):
            yield from _names_in(part)


@dataclass(frozen=True, slots=True)
class _StructDefinition:
    """Creates a msgspec.Struct class; called like its metaclass, with name, bases and namespace.

    fields: those that the class itself declares. options: of its class statement. The class's own ``__annotations__``
    cannot be used: if classes refer to each other, pickle passes that dict before it is filled.
    """

    metaclass: type
    fields: tuple[Field, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, kind: type[msgspec.Struct], msgspec: ModuleType) -> _StructDefinition:
        names, defaults = kind.__struct_fields__, kind.__struct_defaults__
        by_name = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        own = own_annotations(kind)
        fields = []
        for name, encoded in zip(names, kind.__struct_encode_fields__, strict=True):
            default, factory = by_name.get(name, msgspec.NODEFAULT), msgspec.NODEFAULT
            if type(default).__module__ == type(factory).__module__ and default is not factory:  # msgspec's Factory
                default, factory = msgspec.NODEFAULT, default.factory
            if name in own:
                fields.append((name, own[name], encoded, default, factory))
        return cls(type(kind), tuple(fields), _options_of_struct(kind, own))

    def __call__(self, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
        import msgspec

        namespace["__annotations__"] = {field: annotation for field, annotation, *_ in self.fields}
        for field, _, encoded, default, factory in self.fields:
            namespace[field] = msgspec.field(name=encoded, default=default, default_factory=factory)  # type: ignore[call-overload]  # one is NODEFAULT
        made: type = self.metaclass(name, bases, namespace, **self.options)
        return made


def _options_of_struct(kind: type[msgspec.Struct], own: Mapping[str, object]) -> dict[str, object]:
    config = kind.__struct_config__
    options = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    by_keyword = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return options | {"kw_only": any(name in own for name in by_keyword)}


def _post_init(struct: Any) -> None:
    """Call the class's own method, which is set after the creation of the class, because it may refer to the class."""
    struct.__post_init__()

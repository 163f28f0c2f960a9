"""Walks from a variable to every tensor that it keeps alive, by way of containers, attributes, closures and errors."""

import functools
import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import FunctionType, GeneratorType, MethodType
from typing import Any, NamedTuple

import torch

from efprof.recorder.holders import variables
from efprof.recorder.holders.paths import Held, Key, Place, TimeLimit, TimeLimitReached
from efprof.recorder.session.sites import Sites, user_file_of

MAX_DEPTH = 6
"""Attributes and keys below a variable; deeper structures are libraries' own. An attribute of the user's classes counts
once, however often the way leads through it, as in a linked list."""

CHUNK = 1000
"""Elements of a container that are told apart at once; to visit them takes a millisecond."""

MANY, NUM_SAMPLED = 50_000, 16
"""To go through more elements writes to the memory of each, and copies what forked processes share with this one."""

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_ROWS = frozenset({list, tuple})

_TABLES = frozenset({"_buffers", "_parameters"})
"""Where a `torch.nn.Module` keeps the tensors that the program knows as its attributes."""

_Visitor = Callable[[Any, Place], None]


class _Kind(NamedTuple):
    """How things of one type are visited; `has_names` for their contents, or is one more layer of a container."""

    visit: _Visitor | None
    has_names: bool = False


class Walk:
    """Visits one variable after another; what was reached from an earlier one counts there alone."""

    def __init__(self, sites: Sites, time_limit: TimeLimit, on_container: Callable[[Any, Place], None]) -> None:
        """`on_container` is told of each container and its place."""
        self.held: dict[Key, Held] = {}
        self.seen = set[int]()
        self.running = set[int]()
        self._sites = sites
        self._file_of: Callable[..., str | None] = functools.cache(functools.partial(user_file_of, sites=sites))
        """The user's file that defines a class; None for what a library defines."""
        self._time_limit = time_limit
        self._on_container = on_container
        self._kind: Callable[..., _Kind] = functools.cache(self._new_kind)
        self._todo: deque[tuple[_Visitor, Any, Place]] = deque()
        """What was met and not gone into yet: nearer things first, and a chain of any length needs no deep stack."""
        self._depths: dict[str, int] = {}
        """At which depth an attribute of the user's classes was first met below the variable."""
        self._seen_here = set[int]()
        self._held_here: list[Held] = []
        self._tables = set[int]()
        """Dictionaries of modules, by `id`, whose entries are counted as the modules' attributes."""
        self._parts = set[int]()
        """Modules, by `id`, that are parts of others: a list of some of them is not what holds what these have."""

    def visit_variable(
        self, scope: str, owner: str, file: str | None, name: str, value: Any, within: Any = None
    ) -> None:
        """Raises TimeLimitReached where it takes too long; then all of it is cut, and none of it counts as seen."""
        self._seen_here, self._depths = set(), {}
        self._visit_names(scope, owner, file, {name: value}, within)
        try:
            while self._todo:
                self._time_limit.check()
                visit, value, place = self._todo.popleft()
                visit(value, place)
        except TimeLimitReached:
            for held in self._held_here:
                held.counted.is_cut = True
            raise
        finally:
            self._todo.clear()
            self._held_here.clear()
        self.seen |= self._seen_here

    def _holder(self, place: Place, value: Any) -> Held:
        """What a tensor, or a container, at this place is counted in."""
        if place.inside is not None:
            return place.inside
        key = (place.scope, place.path)
        held = self.held.get(key)
        if held is None:
            held = self.held[key] = Held(place, value)
        held.meet(place, value)
        self._held_here.append(held)
        return held

    def _visit_names(self, scope: str, owner: str, file: str | None, names: dict[str, Any], within: Any = None) -> None:
        for name, value in list(names.items()):
            if not name.startswith("__"):
                self._visit(value, Place(f"{owner}.{name}", scope, owner, name, file, 0, within))

    def _visit(self, value: Any, place: Place) -> None:
        """Count a tensor, go into anything else later.

        By its type alone: `isinstance` and `hasattr` would run the code of a proxy that loads lazily.
        """
        kind = type(value)
        if kind in variables.PLAIN:
            return
        if issubclass(kind, torch.Tensor):
            self._visit_tensors([value], place)
            return
        visit = self._kind(kind).visit
        if visit is not None and place.depth <= MAX_DEPTH and self._is_new(value):
            self._todo.append((visit, value, place))

    def _visit_tensors(self, tensors: list[Any], place: Place) -> None:
        self._holder(place, tensors[0]).add(tensors)
        for extra in gc.get_referents(*tensors):
            if issubclass(type(extra), dict) and self._is_new(extra):
                self._todo.append((self._visit_on_tensor, extra, place))

    def _is_new(self, value: Any) -> bool:
        address = id(value)
        is_new = address not in self.seen and address not in self._seen_here
        self._seen_here.add(address)
        return is_new

    def _new_kind(self, kind: type[Any]) -> _Kind:
        if kind in variables.CODE:
            return _Kind(self._visit_code, has_names=True)
        if kind is variables.LRU_CACHE:
            return _Kind(self._visit_cache)
        if issubclass(kind, (torch.Tensor, *variables.NOT_DATA)) or str(getattr(kind, "__module__", "")).startswith(
            "efprof.recorder."
        ):
            return _Kind(None)  # a variable may hold the recording: what that keeps is ours
        if issubclass(kind, variables.COLLECTIONS):
            return _Kind(self._visit_elements)
        if issubclass(kind, dict):
            return _Kind(self._visit_entries)
        if issubclass(kind, BaseException):
            return _Kind(self._visit_error)
        if variables.inner_name(kind):
            return _Kind(self._visit_container)
        if kind.__dictoffset__ or variables.slots_of(kind):
            return _Kind(self._visit_attributes, has_names=True)
        return _Kind(self._visit_contents)

    def _visit_code(self, value: Any, place: Place) -> None:
        """Go to the variables that the user's own functions, generators and classes keep."""
        if isinstance(value, MethodType):
            owner = value.__self__  # a hook's or a callback's, far from the variable: what it has is near to it
            near = place._replace(depth=0) if self._file_of(type(owner)) else place.below()
            self._visit(owner, near)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, GeneratorType):
            frame, code = value.gi_frame, value.gi_code
            if frame is not None and self._sites.is_user_code(code) and variables.may_read_locals(code):
                self._visit_names("local", code.co_qualname, code.co_filename, variables.locals_of(frame), frame)
        elif self._sites.is_user_code(value.__code__):
            names, cells = variables.variables_of(value), variables.cells_of(value)
            if place.inside is not None:  # an object has names of its own, which other functions may know it by
                parts = {name: part for name, part in names.items() if not self._kind(type(part)).has_names}
                self._visit_each(list(parts.values()), place, place.inside)
                names = {name: part for name, part in names.items() if name not in parts}
            owner = value.__qualname__.removesuffix(f".<locals>.{value.__name__}")
            file = value.__code__.co_filename
            for name, element in names.items():
                self._visit_names("local", owner, file, {name: element}, cells.get(name))
            self._visit_names("attribute", value.__qualname__, file, value.__dict__, value.__dict__)

    def _visit_class(self, kind: type[Any]) -> None:
        file = self._file_of(kind)
        if file is not None:
            names = {name: value for name, value in vars(kind).items() if type(value) not in variables.CODE}
            self._visit_names("attribute", kind.__qualname__, file, names, kind)
            for name, value in list(vars(kind).items()):
                # A function for its defaults; one with a cache may stand for an operator, such as `__getitem__`.
                if type(value) in (FunctionType, variables.LRU_CACHE):
                    place = Place(f"{kind.__qualname__}.{name}", "attribute", kind.__qualname__, name, file)
                    self._visit(value, place)

    def _visit_elements(self, value: Any, place: Place) -> None:
        self._on_container(value, place)
        if _is_plain_at_samples(value):
            return
        elements = list(variables.base_of(value).__iter__(value))  # a subclass may have its own `__iter__`
        if not variables.may_hold_tensors(elements):
            return
        self._visit_each(elements, place, self._holder(place, value))

    def _visit_each(self, elements: list[Any], place: Place, holder: Held) -> None:
        """What is alone of its kind in the outermost container is no record: its attributes are named by themselves."""
        of_element = place._replace(inside=holder)
        below = of_element.below()
        is_outermost = place.inside is None and len(elements) <= variables.FEW
        lone = variables.lone_kinds(elements) if is_outermost else frozenset()
        for part in self._parts_to_visit(elements):
            chunk = elements[part]
            kinds = set(map(type, chunk))
            if kinds - variables.PLAIN <= _TENSORS:
                tensors = [element for element in chunk if type(element) not in variables.PLAIN]
                if tensors:
                    self._visit_tensors(tensors, of_element)
                continue
            if kinds <= _ROWS and len(chunk) > variables.FEW and sum(map(len, chunk)) <= variables.MAX_OBJECTS:
                rows = filter(self._is_new, chunk)
                visit = functools.partial(self._visit_each, holder=holder)
                self._todo.append((visit, gc.get_referents(*rows), of_element))
                continue
            for element in chunk:
                if type(element) not in variables.PLAIN:
                    kind = self._kind(type(element))
                    is_alone = kind.has_names and (variables.kind_of(element) in lone or id(element) in self._parts)
                    self._visit(element, place.below() if is_alone else below if kind.has_names else of_element)

    def _parts_to_visit(self, elements: list[Any]) -> Iterator[slice]:
        """Those in which there may be a tensor; raises TimeLimitReached."""
        for start in range(0, len(elements), CHUNK):
            self._time_limit.check()
            part = slice(start, start + CHUNK)
            if len(elements) <= variables.FEW or not variables.is_plain_data(elements[part]):
                yield part

    def _visit_entries(self, value: dict[Any, Any], place: Place) -> None:
        self._on_container(value, place)
        holder, unnamed = self._holder(place, value), []
        if _is_plain_at_samples(value):
            return
        is_table = id(value) in self._tables
        keys, elements = list(dict.keys(value)), list(dict.values(value))
        for part in self._parts_to_visit(elements):
            for key, element in zip(keys[part], elements[part], strict=False):
                if type(element) in variables.PLAIN or (is_table and _is_attribute(key)):
                    continue
                if type(key) is not str:
                    unnamed.append(element)
                else:
                    inside = holder if issubclass(type(element), torch.Tensor) else place.inside
                    at = place._replace(path=f"{place.path}[{key!r}]", within=(value, key), inside=inside)
                    self._visit(element, at.below())
        if unnamed:
            made = [key for key in keys if type(key) is tuple]  # for it, as the arguments of a cached function are
            self._visit_each([*unnamed, *made], place, holder)

    def _visit_container(self, value: Any, place: Place) -> None:
        """What a container of Python's own has is held by the variable that the program calls the container by."""
        inner = dict(variables.attributes_of(value)).get(variables.inner_name(type(value)) or "")
        visit = self._kind(type(inner)).visit
        if visit is not None:
            visit(inner, place)
            held = self.held.get((place.scope, place.path))
            if place.inside is None and held is not None:
                held.counted.type = type(value).__name__

    def _visit_cache(self, value: Any, place: Place) -> None:
        """The results of a cached function, and its arguments, are held by the function's name."""
        function, table = (variables.namespace_of(value) or {}).get("__wrapped__"), variables.cache_table(value)
        if type(function) is FunctionType and self._sites.is_user_code(function.__code__):
            owner, file = function.__qualname__, function.__code__.co_filename
            path, inside = f"{owner}.cache_info", place.inside
            place = Place(path, "attribute", owner, "cache_info", file, place.depth, inside=inside)
        self._on_container(table, place)
        holder = self._holder(place, table)
        if place.inside is None:
            holder.counted.type = "lru_cache"
            holder.counted.max_length = variables.LRU_CACHE.cache_info(value).maxsize or 0
        self._visit_each(gc.get_referents(value), place._replace(inside=holder), holder)

    def _visit_contents(self, value: Any, place: Place) -> None:
        """What an object of C keeps that has no names for it, such as an iterator."""
        contents = gc.get_referents(value)
        if variables.may_hold_tensors(contents):
            self._visit_each(contents, place, self._holder(place, value))

    def _visit_on_tensor(self, value: dict[str, Any], place: Place) -> None:
        """The attributes that a program sets on a tensor, and the hooks that it registers on it."""
        if type(value) is dict:
            self._visit_named("Tensor", None, value.items(), place.depth - 1, place.inside, value)
        else:
            path, name = "Tensor._backward_hooks", "_backward_hooks"
            hooks = Place(path, "attribute", "Tensor", name, None, place.depth, inside=place.inside)
            self._visit_entries(value, hooks)

    def _visit_error(self, value: BaseException, place: Place) -> None:
        """A kept error keeps the variables of every function that it came through; of those that still run, they do."""
        below = place._replace(inside=self._holder(place, value)).below()
        traceback = value.__traceback__
        while traceback is not None:
            frame, traceback = traceback.tb_frame, traceback.tb_next
            is_over = id(frame) not in self.running
            if is_over and self._sites.is_user_code(frame.f_code) and variables.may_read_locals(frame.f_code):
                for element in list(variables.locals_of(frame).values()):
                    self._visit(element, below)
        self._visit_attributes(value, place)

    def _visit_attributes(self, value: Any, place: Place) -> None:
        kind = type(value)
        file, attributes = self._file_of(kind), variables.attributes_of(value)
        if issubclass(kind, torch.nn.Module):
            self._note_parts(value)
            for name, table in attributes:
                if name in _TABLES and issubclass(type(table), dict):  # the program knows its entries as attributes
                    self._tables.add(id(table))
                    entries = [(key, tensor) for key, tensor in list(dict.items(table)) if _is_attribute(key)]
                    self._visit_named(kind.__qualname__, file, entries, place.depth, place.inside, table)
        self._visit_named(kind.__qualname__, file, attributes, place.depth, place.inside, value)
        namespace = variables.namespace_of(value) if place.inside is None else None
        if namespace is not None and (file is not None or issubclass(kind, torch.nn.Module)):
            own = Place(f"{kind.__qualname__}.__dict__", "attribute", kind.__qualname__, "__dict__", file, place.depth)
            self._on_container(namespace, own)

    def _note_parts(self, module: torch.nn.Module) -> None:
        todo: list[Any] = [] if id(module) in self._parts else [module]
        while todo:
            table: Any = (variables.namespace_of(todo.pop()) or {}).get("_modules")
            if issubclass(type(table), dict):
                below = [part for part in dict.values(table) if part is not None and id(part) not in self._parts]
                self._parts.update(map(id, below))
                todo += below

    def _visit_named(
        self,
        owner: str,
        file: str | None,
        attributes: Iterable[tuple[str, Any]],
        depth: int,
        inside: Held | None,
        within: Any = None,
    ) -> None:
        for name, element in attributes:
            is_empty = type(element) in variables.LIGHT and not element
            if type(element) in variables.PLAIN or (file is None and is_empty):
                continue
            path, below = f"{owner}.{name}", depth + 1
            if file is not None:
                below = min(below, self._depths.setdefault(path, below))
            self._visit(element, Place(path, "attribute", owner, name, file, below, within, inside))


def _is_plain_at_samples(value: Any) -> bool:
    """Whether a large container has only numbers and texts where it is looked at: a list all over, others first."""
    base = variables.base_of(value)
    number = base.__len__(value)
    if number <= MANY:
        return False
    if base not in (list, tuple):
        first = dict.values(value) if base is dict else base.__iter__(value)
        return variables.is_plain_data(list(islice(first, CHUNK)))
    places = range(0, number, number // NUM_SAMPLED)
    return all(variables.is_plain_data(base.__getitem__(value, slice(at, at + CHUNK))) for at in places)


def _is_attribute(key: Any) -> bool:
    """Whether the program knows an entry of a module's table as an attribute; a name with a number is one of many."""
    return type(key) is str and not key[-1:].isdigit()

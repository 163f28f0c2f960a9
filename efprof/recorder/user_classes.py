"""Which classes the user wrote, and in which file."""

import sys
from types import FunctionType
from typing import Any

from efprof.recorder.sites import Sites


def user_file_of(kind: type[Any], sites: Sites) -> str | None:
    """The user's file that defines a class; in a notebook, whose main module has none, the methods tell it."""
    module_file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    methods = (value for value in vars(kind).values() if type(value) is FunctionType)
    files = [module_file] if module_file else [method.__code__.co_filename for method in methods]
    return next(filter(sites.is_user_file, files), None)


class UserClasses:
    """Remembers each class that it was asked about."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._files: dict[type[Any], str | None] = {}
        self._records: dict[type[Any], bool] = {}

    def file_of(self, kind: type[Any]) -> str | None:
        """The user's file that defines it; None for what a library defines."""
        if kind not in self._files:
            self._files[kind] = user_file_of(kind, self._sites)
        return self._files[kind]

    def is_record(self, kind: type[Any]) -> bool:
        """Whether its objects have but what the user's own classes give them, and no container of Python's in them."""
        known = self._records.get(kind)
        if known is None:
            bases = (base for base in kind.__mro__ if base is not object)
            known = self._records[kind] = type(kind) is type and all(map(self.file_of, bases))
        return known

"""Which classes the user wrote, and in which file."""

import sys
from typing import Any

from efprof.recorder.sites import Sites


class UserClasses:
    """Remembers each class that it was asked about."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._files: dict[type[Any], str | None] = {}
        self._records: dict[type[Any], bool] = {}

    def file_of(self, kind: type[Any]) -> str | None:
        """The user's file that defines it; None for what a library defines."""
        if kind not in self._files:
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            self._files[kind] = file if file and self._sites.is_user_file(file) else None
        return self._files[kind]

    def is_record(self, kind: type[Any]) -> bool:
        """Whether its objects have but what the user's own classes give them, and no container of Python's in them."""
        known = self._records.get(kind)
        if known is None:
            bases = (base for base in kind.__mro__ if base is not object)
            known = self._records[kind] = type(kind) is type and all(map(self.file_of, bases))
        return known

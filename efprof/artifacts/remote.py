"""Runs and traces at a URL, such as `s3://bucket/run`: copied to this machine for as long as they are looked at."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from efprof.model import EfprofError, UnreadableInput

USER = re.compile(r"(?<!\babfs)(?<!\babfss)(?<!\baz)(?<!\bgithub)://[^/\s]*@")
"""With its password. What stands there in Azure's URLs is a container, in GitHub's a repository."""
QUERY = re.compile(r"(://[^?\s'\"]*)\?[^\s'\"]*")


def is_url(name: str) -> bool:
    """Whether it is anything that fsspec opens; paths, names of runs and branches have no `://`."""
    return "://" in name


@contextmanager
def local_copies(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """The path of each copy, which has the URL's name, with the URL as it may be shown; what is no URL is by itself.

    Raises UnreadableInput where a URL cannot be read. Errors that name a copy name its URL.
    """
    with TemporaryDirectory(prefix="efprof-copy-") as folder:
        local = {
            str(_copied(name, Path(folder).resolve() / str(place))) if is_url(name) else name: without_secrets(name)
            for place, name in enumerate(names)
        }
        try:
            yield local
        except EfprofError as error:
            error.args = (known_by(str(error), local),)
            raise


def known_by(text: str, local: dict[str, str]) -> str:
    """What names a copy, with the URL in its place."""
    for path, name in local.items():
        text = text.replace(path, name) if path != name else text
    return text


def without_secrets(text: str) -> str:
    """The URLs in it without user, password and query, such as the signature of a link."""
    return QUERY.sub(r"\1", USER.sub("://", text))


def _copied(url: str, folder: Path) -> Path:
    shown = without_secrets(url)
    try:
        import fsspec
    except ImportError:
        raise EfprofError(f"{shown} needs fsspec: install it by 'pip install fsspec'.") from None
    try:
        system, path = fsspec.core.url_to_fs(url)
        place = folder / (path.partition("?")[0].rstrip("/").rpartition("/")[2] or "run")
        files = [path] if system.isfile(path) else sorted(system.find(path))
        targets = [place.joinpath(*file.removeprefix(path).strip("/").split("/")) for file in files]
        for target in targets:
            if ".." in target.parts:  # an object store takes any name, such as one that leads out of the folder
                raise UnreadableInput(f"{shown} cannot be read: {target.name} in it is no name of a file here.")
            target.parent.mkdir(parents=True, exist_ok=True)
        system.get(files, list(map(str, targets)))
    except Exception as error:  # each package that talks to a store has its own
        if not isinstance(error, EfprofError):
            told = without_secrets(str(error)) or type(error).__name__
            raise UnreadableInput(f"{shown} cannot be read: {told}.") from None
        raise
    if not files:
        raise UnreadableInput(f"{shown} cannot be read: there is nothing.")
    return place

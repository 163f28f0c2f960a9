"""Runs and traces at a URL, such as `s3://bucket/run`: copied to this machine for as long as they are looked at."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from efprof.model import EfprofError, UnreadableInput


def is_url(name: str) -> bool:
    """Whether it is anything that fsspec opens; paths, names of runs and branches have no `://`."""
    return "://" in name


@contextmanager
def local_copies(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Each name by the path of its copy, which has the same name; of what is no URL by itself.

    Raises UnreadableInput where a URL cannot be read. Errors that name a copy name its URL.
    """
    with TemporaryDirectory(prefix="efprof-copy-") as folder:
        local = {
            str(_copied(name, Path(folder) / str(place))) if is_url(name) else name: name
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


def _copied(url: str, folder: Path) -> Path:
    try:
        import fsspec
    except ImportError:
        raise EfprofError(f"{url} needs fsspec: install it by 'pip install efprof[remote]'.") from None
    try:
        system, path = fsspec.core.url_to_fs(url)
        place = folder / (path.rstrip("/").rpartition("/")[2] or "run")
        files = [path] if system.isfile(path) else sorted(system.find(path))
        targets = [place.joinpath(*file.removeprefix(path).strip("/").split("/")) for file in files]
        for target in targets:
            if ".." in target.parts:  # an object store takes any name, such as one that leads out of the folder
                raise UnreadableInput(f"{url} cannot be read: {target.name} in it is no name of a file here.")
            target.parent.mkdir(parents=True, exist_ok=True)
        system.get(files, list(map(str, targets)))
    except (OSError, ValueError, ImportError) as error:
        raise UnreadableInput(f"{url} cannot be read: {error or type(error).__name__}.") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("builtins", "efprof"):  # of the package that talks to it
            raise UnreadableInput(f"{url} cannot be read: {type(error).__name__}, {error}.") from None
        raise
    if not files:
        raise UnreadableInput(f"{url} cannot be read: there is nothing.")
    return place

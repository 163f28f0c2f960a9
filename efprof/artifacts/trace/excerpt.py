"""Some of the events of a trace file, their text as it was, with events of ours beside them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import compress
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from isal import igzip

from efprof.artifacts.trace.blocks import TraceText
from efprof.artifacts.trace.events import NO_JSON, Array, Block, Decoder

BETWEEN: Final = b",\n"


def excerpt(path: Path, chosen: Callable[[Block], Array], added: Sequence[dict[str, object]]) -> bytes:
    """A packed trace of the events of which `chosen` is true, with all that the file says beside its events.

    `added` is at least one event. The file was read before: one that is broken raises UnreadableInput.
    """
    text, packed = TraceText(path), BytesIO()
    with cast(Any, igzip).open(packed, "wb") as file:
        for number, (texts, block) in enumerate(text.decoded(partial(_with_texts, Decoder()))):
            kept = compress(texts, chosen(block).tolist())
            file.write((b"" if number else text.head) + b"".join(bytes(one) + BETWEEN for one in kept))
        file.write(BETWEEN.join(map(msgspec.json.encode, added)) + b"]" + text.tail)
    return packed.getvalue()


def _with_texts(decoder: Decoder, text: bytes) -> tuple[Sequence[msgspec.Raw], Block] | None:
    """The columns of a block, and the text of each of its events."""
    block = decoder.block(text)
    if block is None:
        return None
    try:
        texts = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = NO_JSON.sub(b":null", text.decode(errors="replace").encode())
        texts = msgspec.json.decode(mended, type=list[msgspec.Raw])
    return (list(_readable(decoder, texts)) if block.num_unreadable else texts), block


def _readable(decoder: Decoder, texts: Sequence[msgspec.Raw]) -> Iterator[msgspec.Raw]:
    """Those that have a place in the columns."""
    for one in texts:
        alone = decoder.block(b"[%b]" % bytes(one))
        if alone is not None and not alone.num_unreadable:
            yield one

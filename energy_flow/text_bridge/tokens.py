"""Text as tokens: its UTF-8 bytes, and three marks."""

import numpy as np
import numpy.typing as npt

PADDING, BEGIN, END = 0, 1, 2
_FIRST_BYTE = 3
VOCABULARY_SIZE = _FIRST_BYTE + 256


def encode(text: str, max_bytes: int) -> npt.NDArray[np.int64]:
    """Tokens [max_bytes + 2]: begin, the text's first `max_bytes` bytes, end, padding."""
    content = np.frombuffer(text.encode()[:max_bytes], dtype=np.uint8)
    tokens = np.full(max_bytes + 2, PADDING, dtype=np.int64)
    tokens[0] = BEGIN
    tokens[1 : 1 + len(content)] = content
    tokens[1 : 1 + len(content)] += _FIRST_BYTE
    tokens[1 + len(content)] = END
    return tokens


def decode(tokens: npt.NDArray[np.int64]) -> str:
    """The text of tokens [length] up to the first end mark; bytes that are no UTF-8 become U+FFFD."""
    ends = np.flatnonzero(tokens == END)
    content = tokens[: ends[0]] if len(ends) else tokens
    return bytes((content[content >= _FIRST_BYTE] - _FIRST_BYTE).astype(np.uint8)).decode(errors="replace")

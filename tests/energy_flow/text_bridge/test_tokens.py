import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_flow.text_bridge.tokens import BEGIN, END, PADDING, decode, encode


@given(st.text(max_size=20))
def test_a_text_that_fits_comes_back(text: str) -> None:
    assert decode(encode(text, 100)) == text


@pytest.mark.parametrize(("text", "length"), [("", 5), ("abc", 5), ("abcdefgh", 5)])
def test_tokens_are_begin_bytes_end_and_padding_of_one_length(text: str, length: int) -> None:
    tokens = list(encode(text, length))
    used = min(len(text), length)
    assert len(tokens) == length + 2
    assert tokens[0] == BEGIN
    assert tokens[used + 1] == END
    assert set(tokens[used + 2 :]) <= {PADDING}


def test_a_character_cut_in_two_is_replaced_and_nothing_else() -> None:
    assert decode(encode("abä", 3)) == "ab�"

"""The transformer parts of the text bridge: attention and the block around it, for a whole batch at once."""

from torch import Tensor, nn
from torch.nn import functional

_WIDENING = 4  # inner size of the two-layer network over the model size, as in "Attention Is All You Need"


class Attention(nn.Module):
    """Multi-head attention of one sequence over another, or over itself."""

    def __init__(self, model_size: int, num_heads: int) -> None:
        """Make the projections; `model_size` is a multiple of `num_heads`."""
        super().__init__()
        self.num_heads = num_heads
        self.to_query = nn.Linear(model_size, model_size)
        self.to_key_and_value = nn.Linear(model_size, 2 * model_size)
        self.out = nn.Linear(model_size, model_size)

    def forward(
        self, reader: Tensor, read: Tensor, *, visible: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """What `reader` [batch, length, model_size] takes from `read` [batch, read_length, model_size].

        `visible` is a mask that broadcasts to [batch, heads, length, read_length], true where reading is allowed.
        """
        query = self._heads(self.to_query(reader))
        key, value = (self._heads(part) for part in self.to_key_and_value(read).chunk(2, dim=-1))
        taken = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, is_causal=is_causal)
        mixed: Tensor = self.out(taken.transpose(1, 2).flatten(2))
        return mixed

    def _heads(self, sequence: Tensor) -> Tensor:
        batch, length, model_size = sequence.shape
        return sequence.view(batch, length, self.num_heads, model_size // self.num_heads).transpose(1, 2)


class FeedForward(nn.Sequential):
    """The two-layer network of a transformer block, its normalisation included."""

    def __init__(self, model_size: int) -> None:
        """Widen the model size and come back to it."""
        super().__init__(
            nn.LayerNorm(model_size),
            nn.Linear(model_size, _WIDENING * model_size),
            nn.GELU(),
            nn.Linear(_WIDENING * model_size, model_size),
        )

"""A small decoder that predicts the next token, and variations of it, each of which differs in one respect."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tangentlens.errors import InputError

# The width of an attention head, and the states of each channel of a state-space model.
HEAD, STATES = 32, 8
# The standard deviation of initial weights, as in Llama.
_STD = 0.02
_ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Design:
    """What a network is made of.

    Attributes:
        mixer: How positions see earlier ones: causal `attention`, the `mean` over them, an `lstm` or a `state space`.
        positions: How attention knows positions: `rotary`, `learned` (added to the embedding), or `none`.
        norm: Where norms are: before each part of a block (`pre`), or after it is added to the stream (`post`).
        tied: Whether the embedding is the output matrix too.
        learns_attention: Whether the matrices that decide what attends to what are trained.
        residual_scale: What every part is multiplied by before it is added to the stream.
    """

    mixer: Literal["attention", "mean", "lstm", "state space"] = "attention"
    positions: Literal["rotary", "learned", "none"] = "rotary"
    norm: Literal["pre", "post"] = "pre"
    tied: bool = True
    learns_attention: bool = True
    residual_scale: float = 1.0


PLAIN = "plain decoder"
# A new variation is a line here.
VARIATIONS: dict[str, Design] = {
    PLAIN: Design(),
    "learned positions": Design(positions="learned"),
    "no positions": Design(positions="none"),
    "post-norm": Design(norm="post"),
    "untied embeddings": Design(tied=False),
    "small residuals": Design(residual_scale=0.3),
    "frozen attention": Design(learns_attention=False),
    "mean attention": Design(mixer="mean"),
    "LSTM": Design(mixer="lstm"),
    "state space": Design(mixer="state space"),
}


@dataclass(frozen=True)
class Output:
    """What a network returns.

    Attributes:
        logits: The scores of all types for each next token.
        loss: The mean cross entropy of the next tokens; None without labels.
    """

    logits: Float[Tensor, "batch length vocabulary"]
    loss: Float[Tensor, ""] | None = None


class VariedForCausalLM(nn.Module):
    """A decoder made after a design, with gated MLPs and RMS norms as Llama has them.

    Args:
        design: What it is made of.
        vocabulary: Number of token types.
        layers: Number of blocks.
        width: Width of the residual stream, a multiple of 32.
        length: Largest number of tokens in a sequence.
    """

    def __init__(self, design: Design, vocabulary: int, layers: int, width: int, length: int) -> None:
        super().__init__()
        if width % HEAD:
            raise InputError(f"width must be a multiple of {HEAD}, the width of a head, but is {width}")
        self.design = design
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.embed_positions = nn.Embedding(length, width) if design.positions == "learned" else None
        self.layers = nn.ModuleList(_Block(design, width) for _ in range(layers))
        # After a norm at the end of the last block, another one would do nothing.
        self.norm = nn.RMSNorm(width, eps=1e-6) if design.norm == "pre" else nn.Identity()
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        if design.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, input_ids: Int[Tensor, "batch length"], labels: Int[Tensor, "batch length"] | None = None
    ) -> Output:
        """Return the logits and, with labels, which are the tokens themselves, the loss."""
        hidden = self.embed_tokens(input_ids)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions.weight[: input_ids.shape[1]]
        for block in self.layers:
            hidden = block(hidden)
        logits = self.lm_head(self.norm(hidden))
        if labels is None:
            return Output(logits)
        return Output(logits, functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


class _Block(nn.Module):
    """A mixer and an MLP, each of which adds to the stream."""

    def __init__(self, design: Design, width: int) -> None:
        super().__init__()
        self.design = design
        self.mixer = _mixer(design, width)
        self.mlp = _Mlp(width)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))

    def forward(self, hidden: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        for norm, part in zip(self.norms, (self.mixer, self.mlp), strict=True):
            if self.design.norm == "pre":
                hidden = hidden + self.design.residual_scale * part(norm(hidden))
            else:
                hidden = norm(hidden + self.design.residual_scale * part(hidden))
        return hidden


def _mixer(design: Design, width: int) -> nn.Module:
    match design.mixer:
        case "attention":
            return _Attention(design, width)
        case "mean":
            return _Mean(width)
        case "lstm":
            return _Lstm(width)
        case "state space":
            return _StateSpace(width)


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 32 * round(width * 8 / 3 / 32)
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Attention(nn.Module):
    """Causal attention."""

    def __init__(self, design: Design, width: int) -> None:
        super().__init__()
        self.rotary = design.positions == "rotary"
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        for matrix in (self.q_proj, self.k_proj):
            matrix.weight.requires_grad_(design.learns_attention)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        q, k, v = (
            matrix(x).unflatten(2, (-1, HEAD)).transpose(1, 2) for matrix in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotary:
            q, k = _turned(q), _turned(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def _turned(x: Float[Tensor, "b h l e"]) -> Float[Tensor, "b h l e"]:
    """Return queries or keys turned by their positions: rotary embedding, in halves, as in Llama."""
    half = x.shape[3] // 2
    speeds = _ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * speeds
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=3)


class _Mean(nn.Module):
    """What attention does if every position attends to all earlier ones and itself alike."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return self.o_proj(self.v_proj(x).cumsum(dim=1) / counts[:, None])


class _Lstm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return self.o_proj(self.lstm(x)[0])


class _StateSpace(nn.Module):
    """A diagonal linear state-space model of each channel, with a gate.

    A channel with input x has states s_t = a s_(t-1) + b x_t and the output c . s_t + x_t, with decays a between 0 and
    1 of its own. Unrolled, the output is a convolution of the input with the kernel c . a^t b, which is computed by
    Fourier transforms.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_proj, self.gate_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(3))
        # Decays of exp(-1/T), with times T that cover what a sequence has.
        times = torch.logspace(0, math.log10(64), STATES).expand(width, STATES)
        self.rates = nn.Parameter(-times.log())
        self.weights = nn.Parameter(torch.ones(width, STATES) / STATES)

    def kernel(self, length: int) -> Float[Tensor, "d length"]:
        """Return the response of each channel to a single input; b is taken into c."""
        when = torch.arange(length, device=self.rates.device, dtype=self.rates.dtype)
        return (self.weights[:, :, None] * torch.exp(-self.rates.exp()[:, :, None] * when)).sum(dim=1)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        length, inside = x.shape[1], self.in_proj(x)
        # Twice as long, so that the end of a sequence does not come around to its beginning.
        spectrum = torch.fft.rfft(self.kernel(length), 2 * length).T
        mixed = torch.fft.irfft(torch.fft.rfft(inside, 2 * length, dim=1) * spectrum, 2 * length, dim=1)[:, :length]
        return self.o_proj((mixed + inside) * functional.silu(self.gate_proj(x)))


def _initialise(module: nn.Module) -> None:
    """Draw the weights of a matrix or an embedding as Llama does; an LSTM keeps its own."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_STD)

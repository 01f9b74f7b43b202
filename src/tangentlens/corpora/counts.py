"""Token counts of a corpus: frequency bins, tempered probabilities, draws with these, and the fit of Zipf's law."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.frequency import N_BINS, FrequencyBins, checked_counts
from tangentlens.corpora.windows import Text
from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.rows import as_numbers
from tangentlens.runs.run import Run

# The name under which counts are saved in a run directory.
COUNTS = "token-counts"
# The exponent of Zipf's law is searched between these.
_FLATTEST, _STEEPEST = 0.0, 20.0
# With a larger power, one type alone has all the probability.
_LARGEST_ALPHA = 1e6


@dataclass(frozen=True)
class Zipf:
    """A fit of Zipf's law, by which the frequency of a token type is a power of its rank, p ~ rank^-exponent.

    Attributes:
        exponent: The exponent.
        distance: The largest difference between the cumulative frequencies of the counts and of the law, from 0 to 1.
    """

    exponent: float
    distance: float


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """The token counts of a corpus.

    Attributes:
        counts: The number of occurrences of each token id, `(vocabulary,)`, as integers.
    """

    counts: Int[Tensor, "vocabulary"]

    def __post_init__(self) -> None:
        counts = checked_counts(self.counts)
        if counts.is_floating_point():
            raise InputError(f"token counts must be whole numbers, but are {counts.dtype}; pass them as integers")
        object.__setattr__(self, "counts", counts.long())

    @classmethod
    def of(cls, pieces: Iterable[Any], vocabulary: int) -> TokenCounts:
        """Return the counts of token ids, which may come in any number of pieces.

        Args:
            pieces: Token ids, each piece a tensor or a list of any shape. They are read one after the other.
            vocabulary: Number of token types; all ids must be below.

        >>> TokenCounts.of([[1, 2, 2], torch.tensor([[2, 0]])], vocabulary=4).counts.tolist()
        [1, 1, 3, 0]
        """
        check_whole(1, vocabulary=vocabulary)
        counts = torch.zeros(vocabulary, dtype=torch.int64)
        for piece in pieces:
            ids = as_numbers("token ids", piece).flatten().cpu()
            if not len(ids):
                continue
            if ids.is_floating_point() or not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
                raise InputError(
                    f"token ids must be whole, from 0 to {vocabulary - 1}, but {ids.min()} to {ids.max()} came; "
                    "pass the size of the tokenizer's vocabulary"
                )
            counts += ids.long().bincount(minlength=vocabulary)
        if not bool(counts.any()):
            raise InputError("a corpus must hold at least one token, but holds none; pass another")
        return cls(counts)

    @classmethod
    def of_text(cls, text: Text, encode: Callable[[str], list[int]], vocabulary: int) -> TokenCounts:
        """Return the counts of a whole text, which is read a piece at a time.

        Args:
            text: The text.
            encode: Turns text into token ids, by any tokenizer.
            vocabulary: Number of token types.
        """
        return cls.of((encode(piece) for piece in text.pieces()), vocabulary)

    @classmethod
    def load(cls, run: Run) -> TokenCounts:
        """Return the counts that were saved with a run."""
        kept = run.load_tensors(COUNTS)
        if kept is None:
            raise InputError(f"{run.path} must hold token counts, but does not; count its corpus again")
        return cls(kept[0]["counts"])

    def save(self, run: Run) -> None:
        """Save the counts with a run, and describe them in its manifest, so that results can be reproduced."""
        run.save_tensors(COUNTS, {"counts": self.counts})
        facts: dict[str, float] = {"tokens": int(self.counts.sum()), "types": int(self.counts.gt(0).sum())}
        # A text may be too short for a fit of Zipf's law.
        with contextlib.suppress(InputError):
            facts |= {f"zipf_{name}": value for name, value in asdict(self.zipf()).items()}
        run.describe("counts", facts)

    def bins(self, n_bins: int = N_BINS) -> FrequencyBins:
        """Return `n_bins` bins of token types by frequency, each with about the same number of tokens."""
        return FrequencyBins.of(self.counts, n_bins)

    def most_frequent(self, n: int, without: Collection[int] = ()) -> Int[Tensor, "t"]:
        """Return the ids of the most frequent types that occur, in descending order of frequency.

        Args:
            n: Largest number of types.
            without: Token ids to leave out.

        >>> TokenCounts(torch.tensor([0, 1, 3, 2])).most_frequent(2, without={2}).tolist()
        [3, 1]
        """
        check_whole(1, n=n)
        counts = self.counts.clone()
        counts[[token for token in without if 0 <= token < len(counts)]] = 0
        return counts.argsort(descending=True, stable=True)[: int(counts.gt(0).sum())][:n]

    def tempered(self, alpha: float) -> Float[Tensor, "vocabulary"]:
        """Return probabilities proportional to p^alpha, where p are the frequencies in the corpus.

        Args:
            alpha: 1 keeps the frequencies; 0 makes all types that occur equally likely.

        >>> TokenCounts(torch.tensor([0, 1, 3])).tempered(0.0).tolist()
        [0.0, 0.5, 0.5]
        """
        return self._powers(alpha).softmax(dim=0)

    def _powers(self, alpha: Any) -> Float[Tensor, "vocabulary"]:
        """Return alpha log count of each type; the powers themselves would overflow for large counts."""
        if isinstance(alpha, bool) or not isinstance(alpha, Real) or not abs(float(alpha)) <= _LARGEST_ALPHA:
            raise InputError(f"alpha must be a number of at most {_LARGEST_ALPHA:g} in size, but is {alpha!r}")
        return (self.counts.double().log() * float(alpha)).where(self.counts > 0, -math.inf)

    def loss_weights(self, alpha: float) -> Float[Tensor, "vocabulary"]:
        """Return the weights of targets by which a loss counts types as if their frequencies were the tempered ones.

        A type of frequency p has a weight proportional to p^(alpha - 1), and the mean weight of a token of the corpus
        is 1. Pass them to `torch.nn.functional.cross_entropy(..., weight=weights)`. A type that does not occur has
        weight 0.

        Args:
            alpha: The power, as in `tempered`.

        >>> TokenCounts(torch.tensor([0, 1, 3])).loss_weights(0.0).tolist()
        [0.0, 2.0, 0.6666666666666666]
        """
        return self.tempered(alpha) * self.counts.sum() / self.counts.clamp_min(1)

    def draw_sequences(self, sequences: Any, n: int, alpha: float, seed: int) -> Int[Tensor, "n"]:
        """Return the indices of `n` sequences, drawn so that token frequencies come closer to the tempered ones.

        A token of frequency p should occur p^(alpha - 1) times as often as it does, so a sequence is drawn with
        probability proportional to the mean of p^(alpha - 1) over its tokens. Every sequence contains frequent tokens,
        so these stay more frequent than if tokens were drawn one by one.

        Args:
            sequences: Token ids `(sequences, length)`.
            n: Number of draws, with replacement.
            alpha: The power, as in `tempered`.
            seed: Seed of the draw.
        """
        check_whole(1, n=n)
        check_whole(0, seed=seed)
        sequences = as_numbers("sequences", sequences)
        if sequences.ndim != 2 or sequences.is_floating_point():
            raise InputError(
                f"sequences must be token ids (sequences, length), but are {sequences.dtype} of shape "
                f"{tuple(sequences.shape)}"
            )
        known = (sequences >= 0) & (sequences < len(self.counts))
        if not sequences.numel() or not bool(known.all()) or not bool((self.counts[sequences] > 0).all()):
            raise InputError("sequences must hold counted tokens only, but some were never counted; count them as well")
        wanted = (self._powers(alpha) - self._powers(1.0))[sequences].logsumexp(dim=1)
        weights = (wanted - wanted.amax()).exp()
        return weights.multinomial(n, replacement=True, generator=torch.Generator().manual_seed(seed))

    def zipf(self) -> Zipf:
        """Return the fit of Zipf's law by maximum likelihood.

        Ranks from the same counts that are fitted would make any corpus look more regular than it is. So the tokens are
        split at random: one half gives the ranks, and the other is fitted.
        """
        occurring = self.counts[self.counts > 0].double()
        if len(occurring) < 2:
            raise InputError(f"Zipf's law needs at least 2 token types, but {len(occurring)} came; count a longer text")
        half = torch.binomial(occurring, torch.full_like(occurring, 0.5), generator=torch.Generator().manual_seed(0))
        # All tokens of a type that the first half lacks are in the second, where they would bend the tail upward.
        kept = half > 0
        counts = (occurring - half)[kept][half[kept].argsort(descending=True, stable=True)]
        if len(counts) < 2 or not bool(counts.any()):
            raise InputError(
                f"Zipf's law needs more tokens than {int(occurring.sum())} of {len(occurring)} types; count more"
            )
        log_rank = torch.arange(1, len(counts) + 1, dtype=torch.float64).log()

        def loss(exponent: float) -> float:
            """Return the negative log-likelihood per token."""
            return float(exponent * (counts * log_rank).sum() / counts.sum() + (-exponent * log_rank).logsumexp(dim=0))

        exponent = float(scipy.optimize.minimize_scalar(loss, bounds=(_FLATTEST, _STEEPEST), method="bounded").x)
        law = (-exponent * log_rank).softmax(dim=0).cumsum(dim=0)
        return Zipf(exponent, float((counts.cumsum(dim=0) / counts.sum() - law).abs().amax()))

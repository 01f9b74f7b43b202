"""How often each token type occurs: counted over a corpus, binned, tempered, and held against Zipf's law."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from tangentlens.alignment.frequency import N_BINS, FrequencyBins, checked_counts
from tangentlens.corpora.windows import Text
from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.rows import as_numbers
from tangentlens.runs.run import Run

# Where counts are in a run directory.
COUNTS = "token-counts"
# An exponent of Zipf's law is looked for between these.
_FLATTEST, _STEEPEST = 0.0, 20.0
# Powers beyond are those of one type alone.
_LARGEST_ALPHA = 1e6


@dataclass(frozen=True)
class Zipf:
    """Frequencies as a power of the rank, p ~ rank^-exponent: the exponent, and how far the law is from the counts.

    `distance` is the largest difference between the cumulative frequencies of the counts and of the law.
    """

    exponent: float
    distance: float


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """Occurrences by token id."""

    counts: Int[Tensor, "vocabulary"]

    def __post_init__(self) -> None:
        counts = checked_counts(self.counts)
        if counts.is_floating_point():
            raise InputError(f"token counts must be whole numbers, but are {counts.dtype}; pass them as integers")
        object.__setattr__(self, "counts", counts.long())

    @classmethod
    def of(cls, pieces: Iterable[Any], vocabulary: int) -> TokenCounts:
        """Count pieces of token ids, one after the other: a corpus of any length.

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
        """Count all of a text, with any tokenizer, a piece of it at a time."""
        return cls.of((encode(piece) for piece in text.pieces()), vocabulary)

    @classmethod
    def load(cls, run: Run) -> TokenCounts:
        """The counts that were saved with a run."""
        kept = run.load_tensors(COUNTS)
        if kept is None:
            raise InputError(f"{run.path} must hold token counts, but does not; count its corpus again")
        return cls(kept[0]["counts"])

    def save(self, run: Run) -> None:
        """Keep them with a run, so that what was done with them can be done again."""
        run.save_tensors(COUNTS, {"counts": self.counts})
        facts: dict[str, float] = {"tokens": int(self.counts.sum()), "types": int(self.counts.gt(0).sum())}
        # A text may be too short for a law.
        with contextlib.suppress(InputError):
            facts |= {f"zipf_{name}": value for name, value in asdict(self.zipf()).items()}
        run.describe("counts", facts)

    def bins(self, n_bins: int = N_BINS) -> FrequencyBins:
        """Bins of equal token mass."""
        return FrequencyBins.of(self.counts, n_bins)

    def most_frequent(self, n: int, without: Collection[int] = ()) -> Int[Tensor, "t"]:
        """The ids of at most `n` types that occur, from the most frequent on.

        >>> TokenCounts(torch.tensor([0, 1, 3, 2])).most_frequent(2, without={2}).tolist()
        [3, 1]
        """
        check_whole(1, n=n)
        counts = self.counts.clone()
        counts[[token for token in without if 0 <= token < len(counts)]] = 0
        return counts.argsort(descending=True, stable=True)[: int(counts.gt(0).sum())][:n]

    def tempered(self, alpha: float) -> Float[Tensor, "vocabulary"]:
        """Probabilities p^alpha, normed: as in the corpus for 1, all types that occur alike for 0.

        >>> TokenCounts(torch.tensor([0, 1, 3])).tempered(0.0).tolist()
        [0.0, 0.5, 0.5]
        """
        return self._powers(alpha).softmax(dim=0)

    def _powers(self, alpha: Any) -> Float[Tensor, "vocabulary"]:
        """Logs of the counts' powers, which themselves overflow for large counts."""
        if isinstance(alpha, bool) or not isinstance(alpha, Real) or not abs(float(alpha)) <= _LARGEST_ALPHA:
            raise InputError(f"alpha must be a number of at most {_LARGEST_ALPHA:g} either way, but is {alpha!r}")
        return (self.counts.double().log() * float(alpha)).where(self.counts > 0, -math.inf)

    def draw_types(self, n: int, alpha: float, seed: int) -> Int[Tensor, "n"]:
        """Token ids drawn with the tempered probabilities."""
        check_whole(1, n=n)
        check_whole(0, seed=seed)
        return self.tempered(alpha).multinomial(n, replacement=True, generator=torch.Generator().manual_seed(seed))

    def draw_sequences(self, sequences: Any, n: int, alpha: float, seed: int) -> Int[Tensor, "n"]:
        """Which sequences to take, so that their tokens come nearer to the tempered probabilities.

        A token of probability p should come p^(alpha - 1) times as often as it does, and a sequence comes as often as
        its tokens should on average. Whole sequences hold frequent tokens anyway, so theirs stay more frequent than
        with tokens drawn one by one.
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
        """Fit Zipf's law by maximum likelihood.

        Ranks by the same counts that are fitted would make any corpus look more regular than it is, so the tokens are
        split at random: one half gives the ranks, the other is fitted.
        """
        found = self.counts[self.counts > 0].double()
        if len(found) < 2:
            raise InputError(f"Zipf's law needs at least 2 token types, but {len(found)} came; count a longer text")
        half = torch.binomial(found, torch.full_like(found, 0.5), generator=torch.Generator().manual_seed(0))
        # Types that the first half lacks are in the second for sure, and would bend the end of the law up.
        kept = half > 0
        counts = (found - half)[kept][half[kept].argsort(descending=True, stable=True)]
        if len(counts) < 2 or not bool(counts.any()):
            raise InputError(f"Zipf's law needs more tokens than {int(found.sum())} of {len(found)} types; count more")
        log_rank = torch.arange(1, len(counts) + 1, dtype=torch.float64).log()

        def loss(exponent: float) -> float:
            return float(exponent * (counts * log_rank).sum() / counts.sum() + (-exponent * log_rank).logsumexp(dim=0))

        exponent = float(minimize_scalar(loss, bounds=(_FLATTEST, _STEEPEST), method="bounded").x)
        law = (-exponent * log_rank).softmax(dim=0).cumsum(dim=0)
        return Zipf(exponent, float((counts.cumsum(dim=0) / counts.sum() - law).abs().amax()))

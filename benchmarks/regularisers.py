"""What a regulariser at every step costs, as a ratio of the bare training step, measured side by side in one run.

The model and its batches are those of `lens.py`: 17 M parameters, 2,048 tokens a step, all nine residual sites. Each
term sees at most 512 of the tokens, which is the default. The last line is the authors' way to IsoScore*: singular
values of the covariance, at every site.
"""

import copy
from collections.abc import Callable

import torch

from lens import Training, measured
from tangentlens import Penalty
from tangentlens.training.regularisers import TERMS, IsoScore, Term

ROUNDS = 14


class Penalised(Training):
    """A training whose loss has a penalty."""

    def __init__(self, term: str | Term) -> None:
        super().__init__()
        self.penalty = Penalty(self.model, copy.deepcopy(term), strength=0.1).start()

    def step(self) -> None:
        """Train one step."""
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        (loss + self.penalty()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def by_singular_values(rows: torch.Tensor) -> torch.Tensor:
    """1 - IsoScore* as it is defined, from the singular values of the batch's covariance."""
    d = rows.shape[1]
    values = torch.linalg.svdvals(rows.T.cov())
    distance = (values * d**0.5 / values.norm() - 1).norm() / (2 * (d - d**0.5)) ** 0.5
    return 1 - ((d - distance**2 * (d - d**0.5)) ** 2 - d) / (d * (d - 1))


def main() -> None:
    print(f"{torch.get_num_threads()} threads; the time of a step over that of the bare step")
    ways: dict[str, Callable[[], None]] = {"bare": Training().step}
    ways |= {name: Penalised(name).step for name in TERMS}
    ways["isoscore, all tokens"] = _with_all_tokens(IsoScore()).step
    ways["isoscore by singular values"] = Penalised(by_singular_values).step
    for name, ratio in measured(ways, ROUNDS).items():
        print(f"{name:<30} {ratio:.3f}")


def _with_all_tokens(term: Term) -> Penalised:
    training = Penalised(term)
    training.penalty.close()
    training.penalty = Penalty(training.model, term, strength=0.1, max_tokens=10**6).start()
    return training


if __name__ == "__main__":
    main()

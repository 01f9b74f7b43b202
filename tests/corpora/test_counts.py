import numpy as np
import pytest
import torch

from tangentlens import InputError
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.windows import Text
from tangentlens.runs.run import create_run


def zipf_counts(exponent, types=1000, tokens=300_000, seed=0):
    weights = torch.arange(1, types + 1, dtype=torch.float64).pow(-exponent)
    mixed = weights[torch.randperm(types, generator=torch.Generator().manual_seed(seed))]
    drawn = mixed.multinomial(tokens, replacement=True, generator=torch.Generator().manual_seed(seed))
    return TokenCounts(drawn.bincount(minlength=types))


def test_a_text_is_counted_in_pieces_as_it_would_be_at_once(tmp_path):
    words = np.random.default_rng(0).choice(["the ", "cat ", "sät ", "on\n", "mats "], size=60_000)
    path = tmp_path / "text.txt"
    path.write_text("".join(words), encoding="utf-8")
    vocabulary = {"the": 0, "cat": 1, "sät": 2, "on": 3, "mats": 4}
    pieces = []

    def encode(piece):
        pieces.append(piece)
        return [vocabulary[word] for word in piece.split()]

    found = TokenCounts.of_text(Text(path), encode, vocabulary=5)
    assert len(pieces) > 3
    expected = [int((words == word).sum()) for word in ("the ", "cat ", "sät ", "on\n", "mats ")]
    # At the ends of a piece a word may be left out.
    assert torch.tensor(expected).sub(found.counts).abs().sum() <= 2 * len(pieces)


def test_bins_hold_equal_mass():
    counts = zipf_counts(1.0)
    bins = counts.bins(4)
    mass = torch.zeros(4).index_add_(0, bins.bin_of[counts.counts > 0], counts.counts[counts.counts > 0].float())
    assert (mass / mass.sum()).tolist() == pytest.approx([0.25] * 4, abs=0.07)


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.5])
def test_the_exponent_of_a_zipf_law_is_found(exponent):
    law = zipf_counts(exponent).zipf()
    assert law.exponent == pytest.approx(exponent, abs=0.02)
    assert law.distance < 0.01
    flat = TokenCounts(torch.full((1000,), 300)).zipf()
    assert flat.exponent < 0.02
    few = zipf_counts(1.0, types=50_000, tokens=100_000).zipf()
    assert few.exponent == pytest.approx(1, abs=0.05)
    assert few.distance < 0.04
    assert TokenCounts(torch.tensor([1, 10])).tempered(1000.0).tolist() == [0.0, 1.0]
    two = TokenCounts(torch.cat([torch.full((500,), 1000), torch.full((500,), 1)])).zipf()
    assert two.distance > 0.1


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_tempered_probabilities_are_powers_of_frequencies(alpha):
    counts = torch.tensor([0, 1, 10, 1000])
    expected = counts.double().pow(alpha) * (counts > 0)
    torch.testing.assert_close(TokenCounts(counts).tempered(alpha), expected / expected.sum())


def test_tempered_sequences_are_flatter():
    make = torch.Generator().manual_seed(0)
    weights = torch.arange(1, 201, dtype=torch.float64).pow(-1.0)
    # Topics, so that some sequences are rarer than others.
    topic = torch.rand(500, 1, 200, generator=make).pow(6) + 1e-3
    sequences = torch.stack([(weights * row[0]).multinomial(32, True, generator=make) for row in topic])
    counts = TokenCounts.of([sequences], vocabulary=200)
    exponents = []
    for alpha in (1.0, 0.5, 0.0):
        taken = counts.draw_sequences(sequences, 4000, alpha, seed=0)
        exponents.append(TokenCounts.of([sequences[taken]], vocabulary=200).zipf().exponent)
    assert exponents[0] == pytest.approx(counts.zipf().exponent, abs=0.05)
    assert exponents[0] > exponents[1] > exponents[2]


def test_counts_are_kept_with_a_run(tmp_path):
    run = create_run(tmp_path / "run", {})
    counts = zipf_counts(1.0)
    with pytest.raises(InputError, match="must hold token counts, but does not"):
        TokenCounts.load(run)
    counts.save(run)
    assert torch.equal(TokenCounts.load(run).counts, counts.counts)
    assert run.manifest["counts"]["zipf_exponent"] == pytest.approx(1, abs=0.02)
    assert run.manifest["counts"]["tokens"] == 300_000


def test_ids_as_they_are_kept_on_disk():
    ids = np.array([1, 2, 2], dtype=np.uint16)
    assert TokenCounts.of([ids], vocabulary=4).counts.tolist() == [0, 1, 2, 0]


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(InputError, match="token ids must be whole, from 0 to 3, but 1 to 7 came"):
        TokenCounts.of([[1, 7]], vocabulary=4)
    with pytest.raises(InputError, match="must hold at least one token"):
        TokenCounts.of([[]], vocabulary=4)
    with pytest.raises(InputError, match="needs at least 2 token types, but 1 came"):
        TokenCounts(torch.tensor([5, 0])).zipf()
    with pytest.raises(InputError, match="some were never counted"):
        TokenCounts(torch.tensor([5, 0])).draw_sequences(torch.tensor([[0, 1]]), 1, 0.5, 0)
    with pytest.raises(InputError, match="some were never counted"):
        TokenCounts(torch.tensor([5, 5])).draw_sequences(torch.tensor([[0, -1]]), 1, 0.5, 0)
    with pytest.raises(InputError, match="alpha must be a number of at most"):
        TokenCounts(torch.tensor([5, 5])).tempered(float("nan"))
    with pytest.raises(InputError, match="alpha must be a number of at most"):
        TokenCounts(torch.tensor([5, 5])).draw_sequences(torch.tensor([[0, 1]]), 1, float("inf"), 0)
    with pytest.raises(InputError, match="sequences must be token ids"):
        TokenCounts(torch.tensor([5, 5])).draw_sequences([0, 1], 1, 0.5, 0)
    with pytest.raises(InputError, match="token ids must be numbers in a tensor"):
        TokenCounts.of(["words"], vocabulary=4)
    with pytest.raises(InputError, match="n must be a whole number of at least 1, but is 0"):
        TokenCounts(torch.tensor([5, 5])).draw_sequences([[0, 1]], 0, 1.0, 0)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (torch.tensor([5, -1]), "some are negative"),
        (torch.tensor([0, 0]), "must not all be zero"),
    ],
)
def test_counts_are_at_least_0_and_not_all_of_them(counts, message):
    with pytest.raises(InputError, match=message):
        TokenCounts(counts)

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from tangentlens import InputError, SemiNMF
from tangentlens.alignment.concepts import AFTER, BEFORE, SAME, TOP, contexts, describe_concepts, matched
from tangentlens.alignment.rows import TokenRows

K, D, LENGTH = 4, 24, 20


@pytest.fixture
def planted(generator):
    """Rows of four concepts, each used by the tokens of one id, and gradients along the third of them alone."""
    directions = torch.linalg.qr(torch.randn(D, D, generator=generator)).Q[:K]
    tokens = torch.randint(K, (60 * LENGTH,), generator=generator)
    sizes = torch.rand(len(tokens), generator=generator) + 0.5
    rows = directions[tokens] * sizes[:, None] + 0.02 * torch.randn(len(tokens), D, generator=generator)
    gradients = directions[2] * torch.randn(len(tokens), 1, generator=generator)
    rows = TokenRows.of(rows, gradients, torch.arange(len(tokens)) // LENGTH, tokens)
    return directions, rows, rows.activations[: 30 * LENGTH], rows[torch.arange(30 * LENGTH, 60 * LENGTH)]


def test_planted_concepts_are_found_with_their_tokens_and_their_gradients(planted):
    directions, _, fit_on, test = planted
    found = describe_concepts(fit_on, test, K)
    centred = directions - directions.mean(dim=0)
    match, cosine = matched(found.directions, torch.nn.functional.normalize(centred.double(), dim=1))
    assert sorted(match.tolist()) == [0, 1, 2, 3]
    assert bool((cosine > 0.95).all())
    for concept, planted_one in zip(found.described, match.tolist(), strict=True):
        assert test.tokens[concept.top].tolist() == [planted_one] * TOP
        assert concept.contributions.tolist() == sorted(concept.contributions.tolist(), reverse=True)
        assert concept.found_again > 0.95
        assert concept.energy.ci_low <= concept.energy.value <= concept.energy.ci_high
    assert sum(concept.usage for concept in found.described) == pytest.approx(1)


def test_shares_are_those_along_the_direction(planted):
    _, _, fit_on, test = planted
    found = describe_concepts(fit_on, test, K)
    centred = test.activations.double() - test.activations.double().mean(dim=0)
    for direction, concept in zip(found.directions, found.described, strict=True):
        for rows, share in ((centred, concept.variance), (test.gradients.double(), concept.energy)):
            expected = (rows @ direction).square().sum() / rows.square().sum()
            assert share.value == pytest.approx(float(expected), rel=1e-5)


def test_frequency_is_the_mean_over_what_uses_a_concept(planted):
    _, _, fit_on, test = planted
    counts = torch.tensor([1, 10, 100, 889])
    found = describe_concepts(fit_on, test, K, counts=counts)
    for concept in found.described:
        token = int(test.tokens[concept.top[0]])
        # Hardly any other token uses it.
        assert concept.frequency == pytest.approx(1e6 * float(counts[token]) / 1000, rel=0.2)
    unknown = describe_concepts(fit_on, replace(test, tokens=torch.full_like(test.tokens, -100)), K)
    assert [concept.frequency for concept in unknown.described] == [None] * K


def test_at_most_one_token_of_each_sequence_is_shown(planted):
    _, _, fit_on, test = planted
    for concept in describe_concepts(fit_on, test, K).described:
        shown = test.sequences[concept.top].tolist()
        assert len(set(shown)) == len(shown) == TOP


def test_matching_is_the_best_of_all_permutations(generator):
    ours, theirs = (
        torch.nn.functional.normalize(torch.randn(5, 8, generator=generator, dtype=torch.float64), dim=1)
        for _ in range(2)
    )
    cosines = ours @ theirs.T
    best = max(permutations(range(5)), key=lambda order: sum(float(cosines[i, j]) for i, j in enumerate(order)))
    match, cosine = matched(ours, theirs)
    assert match.tolist() == list(best)
    torch.testing.assert_close(cosine, cosines[range(5), best])


def test_a_direction_without_a_match_is_a_birth(generator):
    ours = torch.eye(3, 6)
    match, cosine = matched(ours, -ours[:2])
    assert (cosine < SAME).all()
    assert sorted(match.tolist())[0] == -1


def test_contexts_are_those_of_the_same_sequence(generator):
    tokens, sequences = torch.randint(50, (40,), generator=generator), torch.arange(40) // 7
    found = contexts(tokens, sequences)
    for place in range(40):
        expected = [
            int(tokens[other]) if 0 <= other < 40 and sequences[other] == sequences[place] else -100
            for other in range(place - BEFORE, place + AFTER + 1)
        ]
        assert found[place].tolist() == expected


def test_a_concept_that_no_row_needs_is_left_out(planted, monkeypatch):
    _, _, fit_on, test = planted
    fit = SemiNMF.fit

    def fit_one_in_vain(self, rows):
        """As the fit ends if the codes of a concept are all 0."""
        fit(self, rows).components_[1] = 0
        return self

    monkeypatch.setattr(SemiNMF, "fit", fit_one_in_vain)
    found = describe_concepts(fit_on, test, K)
    assert found.directions.shape == (K - 1, D)
    assert sum(concept.usage for concept in found.described) == pytest.approx(1)


def test_equal_rows_have_no_concepts(planted):
    _, _, fit_on, test = planted
    with pytest.raises(InputError, match="differ"):
        describe_concepts(torch.ones_like(fit_on), test, K)

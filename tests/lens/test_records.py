"""What a lens measured, as records."""

import pytest
import torch

from tangentlens import tangent_test
from tangentlens.alignment.rows import TokenRows
from tangentlens.lens.measures import Fitting, measure_site
from tangentlens.lens.records import mean_records, share_records
from tangentlens.runs.records import Record


def test_ratios_are_those_of_the_proxy_to_each_control(generator):
    rows, gradients = torch.randn(2, 600, 12, generator=generator)
    controls = ("normal", "random", "pca")
    test = tangent_test(rows, gradients, torch.arange(600) // 20, rank=3, controls=controls, orders=(1.0,))
    records = list(share_records(Record(model="a"), test))
    for metric in ("log_ratio", "token_log_ratio"):
        assert {record.variant for record in records if record.metric == metric} == set(controls)
    for metric in ("share", "token_share"):
        assert {record.variant for record in records if record.metric == metric} == {test.proxy, *controls}
        assert {record.variant for record in records if record.metric == metric and record.detail} == {test.proxy}
    assert {record.variant for record in records if record.metric == "p_value"} == {"normal", "random"}


def test_effective_numbers_of_tokens_that_count_alike_are_their_numbers(generator):
    rows, gradients = torch.randn(2, 600, 12, generator=generator)
    gradients /= gradients.norm(dim=1, keepdim=True)
    test = tangent_test(rows, gradients, torch.arange(600) // 20, rank=3, controls=("random",), orders=(1.0,))
    told = {record.metric: record for record in share_records(Record(model="a"), test)}
    # The other half of the 30 sequences fits the proxy.
    assert told["effective_tokens"].value == pytest.approx(300)
    assert told["effective_sequences"].value == pytest.approx(15)
    assert told["effective_tokens"].n == 300


def test_a_mean_is_over_sites_with_the_same_groups_of_sequences_only(generator):
    rows, gradients = torch.randn(2, 60, 12, generator=generator)
    # With so high a rank there is no tangent test, which would have the same groups.
    fitting = Fitting("pca", rank=9, bins=None, seed=0)
    six, four = (
        measure_site(TokenRows.of(rows, gradients, torch.arange(60) // length), None, fitting) for length in (10, 15)
    )
    about = Record(model="a", site="mean")
    assert "anisotropy" in {record.metric for record in mean_records(about, [six, six])}
    assert not list(mean_records(about, [six, four]))

"""What a lens measured, as records."""

import torch

from tangentlens import tangent_test
from tangentlens.lens.records import share_records
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

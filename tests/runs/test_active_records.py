import torch

from tangentlens import active_concepts
from tangentlens.runs.active_records import active_records
from tangentlens.runs.records import Record, as_frame


def test_every_number_of_active_concepts_is_a_record(generator):
    rows, gradients = (torch.randn(400, 12, generator=generator) for _ in range(2))
    found = active_concepts(rows, gradients, torch.arange(400) // 20, n_concepts=6, n_active=2)
    frame = as_frame("run", active_records(Record(model="m", site="resid.1", seed=3), found))
    assert frame.height == found.table.height
    (ratio,) = frame.filter(metric="active_log_ratio", variant="components").to_dicts()
    assert ratio["value"] == found.log_ratio("components").value
    swapped = frame.filter(metric="active_token_share", variant="concepts_swapped")
    assert swapped["value"].item() == found.token_share("concepts_swapped").value
    assert frame.filter(metric="active_token_advantage")["ci_over"].item() == "sequences"
    assert set(frame["rank"]) == {2}
    assert set(frame["n"]) == {200}
    assert set(frame["site"]) == {"resid.1"}

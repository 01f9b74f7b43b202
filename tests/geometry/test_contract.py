"""One list of checks that every measure passes, whatever it measures."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tangentlens as tl
from tangentlens import InputError, Moments


@dataclass(frozen=True)
class Measure:
    """A measure as a function to one number, and what does not change it."""

    name: str
    call: Any
    same_under: frozenset = field(default=frozenset({"rotation", "scale", "offset"}))
    takes_moments: bool = False


def spectral(name, same_under=("rotation", "scale", "offset")):
    return Measure(name, getattr(tl, name), frozenset(same_under), takes_moments=True)


MEASURES = [
    spectral("anisotropy"),
    Measure("anisotropy power=1", lambda x: tl.anisotropy(x, power=1), takes_moments=True),
    Measure(
        "anisotropy uncentred",
        lambda x: tl.anisotropy(x, center=False),
        frozenset({"rotation", "scale"}),
        takes_moments=True,
    ),
    spectral("participation_ratio"),
    spectral("effective_rank"),
    spectral("entropy_rank"),
    spectral("stable_rank"),
    spectral("isoscore"),
    spectral("alpha_req"),
    spectral("rankme", ("rotation", "scale")),
    Measure("mean_cosine", tl.mean_cosine, frozenset({"rotation", "scale"})),
    Measure("rogue_dimensions", lambda x: float(tl.rogue_dimensions(x).amax()), frozenset({"scale"})),
    Measure("partition_isotropy", tl.partition_isotropy, frozenset({"rotation"})),
    Measure("local_anisotropy", lambda x: tl.local_anisotropy(x, n_clusters=2).value),
    Measure("manifold_entropy", lambda x: tl.manifold_entropy(x, dimension=2).value, frozenset({"rotation", "offset"})),
    *(
        Measure(
            f"intrinsic_dimension {method}", lambda x, method=method: tl.intrinsic_dimension(x, method=method).value
        )
        for method in ("twonn", "twonn-linear", "twonn-censored", "gride", "mle")
    ),
]
each = pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
few = settings(max_examples=8)


def draw(n=60, d=5, seed=0):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=make, dtype=torch.float64) * (torch.arange(d) + 1.0) ** -0.7 + 0.2


def rotation(d, seed=0):
    return torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q


@each
@few
@given(st.integers(30, 60), st.integers(2, 8), st.integers(0, 99), st.floats(1e-3, 1e3))
def test_what_should_not_change_it_does_not(measure, n, d, seed, scale):
    x = draw(n, d, seed)
    expected = pytest.approx(measure.call(x), rel=1e-6, abs=1e-9)
    assert measure.call(x[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]) == (
        # Clusters start from drawn rows, and subsamples are drawn by place.
        expected if "local" not in measure.name else pytest.approx(measure.call(x), rel=0.5)
    )
    if "rotation" in measure.same_under:
        assert measure.call(x @ rotation(d, seed)) == expected
    if "scale" in measure.same_under:
        assert measure.call(scale * x) == expected
    if "offset" in measure.same_under:
        assert measure.call(x + 3.0) == expected


@each
def test_an_offset_of_ten_thousand_spreads_changes_it_by_less_than_a_percent(measure):
    if "offset" in measure.same_under:
        x = draw(400)
        for dtype in (torch.float32, torch.float64):
            moved = (x + 1e4 * x.std()).to(dtype)
            assert measure.call(moved) == pytest.approx(measure.call(x), rel=0.01, abs=1e-3)


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_short_format_is_read_as_the_numbers_it_holds(measure, dtype):
    x = draw(400).to(dtype)
    assert measure.call(x) == pytest.approx(measure.call(x.double()), rel=1e-4, abs=1e-5)


@each
@few
@given(st.lists(st.integers(0, 40), min_size=2, max_size=5), st.integers(2, 6), st.integers(0, 99))
def test_streaming_equals_batch_and_merging_equals_concatenating(measure, sizes, d, seed):
    if not measure.takes_moments:
        return
    pieces = [draw(n, d, seed + i) for i, n in enumerate([30, *sizes])]
    whole = measure.call(torch.cat(pieces))
    streamed, merged = Moments(d), Moments(d)
    for piece in pieces:
        streamed.update(piece)
        merged = Moments(d).update(piece).merge(merged)
    assert measure.call(streamed) == pytest.approx(whole, rel=1e-9)
    assert measure.call(merged) == pytest.approx(whole, rel=1e-9)


@each
def test_fewer_rows_than_features_and_constant_columns_are_fine(measure):
    wide = draw(30, 50)
    assert np.isfinite(measure.call(wide))
    constant = draw(60, 6)
    constant[:, 2] = 7.0
    assert np.isfinite(measure.call(constant))


@each
def test_what_is_not_contiguous_a_list_or_needs_a_gradient_is_fine_and_nothing_is_changed(measure):
    x = draw(40)
    expected = pytest.approx(measure.call(x), rel=1e-9)
    assert measure.call(x.T.contiguous().T) == expected
    assert measure.call(torch.stack([x, x], dim=1)[:, 0]) == expected
    assert measure.call(x.numpy()) == expected
    assert measure.call(x.tolist()) == pytest.approx(measure.call(x.float()), rel=1e-5)
    assert measure.call(x.clone().requires_grad_()) == expected
    assert torch.equal(x, draw(40))


@each
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda x: x[:0], "0 came"),
        (lambda x: x.index_fill(1, torch.tensor([1]), torch.nan), "40 of 40 rows hold NaN or Inf"),
        (lambda x: x.masked_fill(x == x.max(), torch.inf), "1 of 40 rows hold NaN or Inf"),
        (lambda x: x[0], "must be (n_rows, n_features), but the shape is (5,)"),
        (lambda x: x[:, :0], "must be (n_rows, n_features), but the shape is (40, 0)"),
    ],
    ids=["empty", "NaN", "Inf", "one axis", "no features"],
)
def test_bad_input_says_what_must_hold(measure, spoil, says):
    with pytest.raises(InputError) as error:
        measure.call(spoil(draw(40)))
    assert says in str(error.value)


@each
@pytest.mark.parametrize("rows", [draw(1), torch.ones(40, 5)], ids=["one row", "equal rows"])
def test_one_row_or_equal_rows_have_a_value_or_an_error_that_tells_why(measure, rows):
    try:
        told = f"rows have {measure.call(rows)}"
    except InputError as error:
        told = str(error)
    assert "rows" in told
    assert "nan" not in told
    assert "inf" not in told

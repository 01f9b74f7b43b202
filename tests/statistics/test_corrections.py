import numpy as np
import pytest
from scipy import stats

from tangentlens import InputError
from tangentlens.statistics.corrections import benjamini_hochberg, holm


def rejects_by_the_book(p, level):
    """Holm 1979: from the smallest on, p_(i) is held against level / (n - i); the first that fails ends it."""
    order, rejected = np.argsort(p), np.zeros(len(p), dtype=bool)
    for place, index in enumerate(order):
        if p[index] > level / (len(p) - place):
            break
        rejected[index] = True
    return rejected


def test_holm_rejects_what_the_procedure_rejects():
    draw = np.random.default_rng(0)
    for _ in range(200):
        p = draw.random(7) ** 3
        for level in (0.01, 0.05, 0.2):
            assert ((holm(p) <= level) == rejects_by_the_book(p, level)).all()


def test_benjamini_hochberg_is_that_of_scipy():
    draw = np.random.default_rng(2)
    for n in (1, 2, 7, 30):
        p = draw.random(n) ** 2
        p[: n // 3] = p[0]
        assert np.allclose(benjamini_hochberg(p), stats.false_discovery_control(p))


def test_corrected_values_are_in_order_and_never_smaller():
    p = np.random.default_rng(1).random(20)
    for correct in (holm, benjamini_hochberg):
        assert (correct(p) >= p).all()
        assert (np.diff(correct(p)[np.argsort(p)]) >= 0).all()
    assert (holm(p) >= benjamini_hochberg(p)).all()


def test_what_is_no_probability_is_refused():
    for bad in ([0.1, float("nan")], [1.2], [[0.1]]):
        with pytest.raises(InputError, match="between 0 and 1"):
            holm(bad)

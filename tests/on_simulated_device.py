"""Everything on a device that is not the CPU; tests/capture/test_device.py runs this file in a process of its own."""

import gc
import math
from dataclasses import is_dataclass
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import simulated_device
from simulated_device import NAME, waits, without
from tangentlens import Lens, SemiNMF, active_concepts, local_geometry, movement, open_run
from tangentlens.alignment.tangent_test import tangent_test
from tangentlens.capture.backward import gradients
from tangentlens.capture.device import _has_fp64
from tangentlens.capture.forward import activations
from tangentlens.capture.sites import find_sites
from tangentlens.geometry.dimension.entropy import manifold_entropy
from tangentlens.geometry.dimension.intrinsic import _ESTIMATORS, intrinsic_dimension
from tangentlens.geometry.massive import massive_rows
from tangentlens.geometry.measures import Cloud, measure_all
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.neighbours import nearest
from tangentlens.proxies import PROXIES
from tangentlens.studies.profile import Profile
from tangentlens.studies.profile.measuring import run_profile
from tiny import save_tiny, tiny_batch, tiny_model


@pytest.fixture(scope="session", autouse=True)
def sim():
    # Modules are many objects, and none of them is on the device: `held_on_device` need not look at them.
    gc.freeze()
    return simulated_device.register()


def numbers(value):
    """All numbers of a result, however it is nested, in their order."""
    if isinstance(value, Tensor):
        return value.double().cpu().flatten().tolist()
    if isinstance(value, dict):
        return [number for key in value for number in numbers(value[key])]
    if isinstance(value, list | tuple):
        return [number for one in value for number in numbers(one)]
    if is_dataclass(value):
        return numbers({key: one for key, one in vars(value).items() if not key.startswith("_")})
    return [float(value)] if isinstance(value, int | float) else []


def rows_of(n=600, d=48, seed=0, dtype=torch.float32):
    make = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=make) * torch.logspace(0, -1.5, d) + 3 * torch.randn(d, generator=make)
    rows[::97] *= 40
    return rows.to(dtype)


SEQUENCES, TOKENS = torch.arange(600) // 20, torch.arange(600) * 7 % 50


# The device itself: if it let something pass, so would every test below.


def mixed_product(x):
    return x @ torch.ones(4, 2)


def host_indices(x):
    return x[torch.tensor([0, 2])]


def host_generator(x):
    return torch.randn(3, device=x.device, generator=torch.Generator())


@pytest.mark.parametrize("wrong", [mixed_product, host_indices, host_generator, lambda x: torch.cat([x, x.cpu()])])
def test_the_device_refuses_what_a_gpu_refuses(sim, wrong):
    x = torch.ones(4, 4, device=sim)
    assert (x * torch.tensor(2.0)).sum().item() == 32
    with pytest.raises(RuntimeError, match=r"device|generator of sim|on the CPU"):
        wrong(x)


def fill_by_mask(x):
    x[x > 0] = 1.0


def write_by_mask(x):
    x[x > 0] = torch.ones(8, device=x.device)


WAITING = {
    "item": (lambda x: x.sum().item(), 1),
    "truth": (lambda x: bool((x > 0).any()), 1),
    "list": (lambda x: x.tolist(), 1),
    "to host": (lambda x: x.cpu(), 1),
    "from host": (lambda x: torch.ones(3).to(x.device), 1),
    "number": (lambda x: torch.tensor([1.0, 2.0], device=x.device), 1),
    "nonzero": (lambda x: x.nonzero(), 1),
    "mask": (lambda x: x[x > 0], 1),
    "written by mask": (write_by_mask, 1),
    "unique": (lambda x: x.unique(), 1),
    "index of 0 dimensions": (lambda x: x[:, x[0].argmax()], 1),
    "eigh": (lambda x: torch.linalg.eigh(x), 1),
    "filled by mask": (fill_by_mask, 0),
    "from host, later": (lambda x: torch.ones(3).to(x.device, non_blocking=True), 0),
    "arithmetic": (lambda x: (x @ x.T).softmax(dim=1).topk(2).values.cumsum(dim=1), 0),
    "chosen": (lambda x: x.index_select(0, x[0].argmax()[None]), 0),
}


@pytest.mark.parametrize("name", WAITING)
def test_the_device_counts_what_the_host_waits_for(sim, name):
    function, expected = WAITING[name]
    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]] * 4).to(sim)
    with waits() as found:
        function(x)
    assert sum(found.values()) == expected, found


def test_the_device_can_do_without_fp64(sim):
    with without(torch.float64), pytest.raises(TypeError):
        torch.ones(2, device=sim).double()


# Kernels.

KERNELS = {
    "measures": lambda x, s, t: measure_all(Cloud(x, t, s)),
    "massive": lambda x, s, t: massive_rows(x),
    "neighbours": lambda x, s, t: nearest(x, 3).distances,
    "entropy": lambda x, s, t: manifold_entropy(x),
    "local geometry": lambda x, s, t: local_geometry(x, n_anchors=32, dimension=2, k=24).rms_curvature,
    "semi-NMF": lambda x, s, t: (lambda fit: (fit.error_, fit.transform(x)))(SemiNMF(4).fit(x)),
    "uncentred semi-NMF": lambda x, s, t: SemiNMF(4, center=False).fit(x).error_,
    "sparse semi-NMF": lambda x, s, t: SemiNMF(4, sparsity=0.1).fit(x).error_,
    "tangent test": lambda x, s, t: tangent_test(x, x.sin(), s, t, t, rank=4).shares,
    "tangent test of other rows": lambda x, s, t: tangent_test(x, x.sin(), s, rank=4, fit_on=x[:300]).p_values,
    "movement": lambda x, s, t: movement(x, x + 0.1 * x.sin(), s, t, rank=4).test.shares,
    "active concepts": lambda x, s, t: active_concepts(x, x.sin(), s, n_concepts=8, n_active=2),
    **{f"dimension by {name}": lambda x, s, t, name=name: intrinsic_dimension(x, name) for name in _ESTIMATORS},
    **{f"proxy {name}": lambda x, s, t, name=name: proxy_projection(x, name) for name in PROXIES},
}


def proxy_projection(x, name):
    basis = PROXIES[name].fit(x, 4, 0).basis
    return basis @ basis.T


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_those_of_the_cpu(sim, name):
    rows = rows_of()
    here = KERNELS[name](rows, SEQUENCES, TOKENS)
    there = KERNELS[name](rows.to(sim), SEQUENCES.to(sim), TOKENS.to(sim))
    assert numbers(there) == pytest.approx(numbers(here), rel=1e-4, abs=1e-5, nan_ok=True)
    assert len(numbers(here))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_formats_are_measured_in_longer_ones(sim, dtype):
    rows = rows_of(dtype=dtype)
    for function in (
        lambda x: vars(Moments.of(x)),
        lambda x: tangent_test(x, x, SEQUENCES, rank=4, controls=["pca"]).shares,
    ):
        exact, there = function(rows.double()), function(rows.to(sim))
        assert numbers(there) == pytest.approx(numbers(exact), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_moments_of_chosen_rows_are_those_of_the_selection(sim, scale):
    rows, mask = rows_of(n=5000) * scale, torch.rand(5000, generator=torch.Generator().manual_seed(1)) < 0.7
    there = Moments.of_chosen(torch.where(mask[:, None], rows, math.nan).to(sim), mask.to(sim))
    with waits() as found:
        twice = Moments.of_chosen(rows.to(sim, non_blocking=True), mask.to(sim, non_blocking=True)).merge(there)
    assert not found
    for moments, chosen in ((there, rows[mask]), (twice, rows[mask].repeat(2, 1))):
        here = Moments.of(chosen.double())
        assert moments.count == here.count
        torch.testing.assert_close(moments.mean.cpu(), here.mean, rtol=1e-5, atol=1e-6 * scale)
        torch.testing.assert_close(moments.scatter.cpu(), here.scatter, rtol=1e-4, atol=1e-3 * scale**2)


# A training with the lens.


class Batches:
    """What a training is fed with: some tokens are masked, and some are excluded."""

    def __init__(self, device, size=8):
        self.device, self.size = device, size

    def __getitem__(self, step):
        batch = tiny_batch(step, batch=self.size)
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][0, -3:] = 0
        return {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}


SETTINGS = {"sites": ["resid.0", "resid.2"], "rank": 4, "every": [2, 4], "exclude": [5, 6], "skip_first": 1}


def train(device, path=None, steps=5, size=8, dtype=torch.float32, micro=1, **settings):
    """Return the waits of each step, the weights, and the records; a step has `micro` micro-batches."""
    model = tiny_model().to(device, dtype)
    # To a device that is written in Python, weights are moved one by one.
    model.tie_weights()
    # Adam would turn gradients that are rounding alone into steps of full size.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lens = None if path is None else Lens(model, run=path, **SETTINGS | settings).start()
    batches, counted = Batches(device, size), []
    for step in range(steps):
        with waits() as found:
            for part in range(micro):
                loss = model(**batches[step + 100 * part]).loss
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if lens is not None:
                lens.step(loss)
        counted.append(found)
    if lens is not None:
        lens.close()
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    return counted, weights, None if path is None else open_run(path).records


EVERYTHING = {
    "sites": "resid.1",
    "moments_every": 1,
    "predict": True,
    "updates": ["embed", "*.0.mlp.down_proj"],
    "counts": torch.arange(64) + 1,
    "probe": tiny_batch(99)["input_ids"],
    "measures": ["manifold_entropy", "local_anisotropy"],
}


def assert_same_records(here, there, rel=2e-3):
    key = ["step", "site", "metric", "variant", "freq_bin", "order", "quantity", "rows", "rank"]
    here, there = (records.sort(key, nulls_last=True) for records in (here, there))
    assert here.select(key).equals(there.select(key))
    for name in ("value", "ci_low", "ci_high"):
        pairs = list(zip(there[name].to_list(), here[name].to_list(), here["metric"], strict=True))
        there_, here_ = ([pair[i] or 0.0 for pair in pairs] for i in (0, 1))
        assert there_ == pytest.approx(here_, rel=rel, abs=rel, nan_ok=True)


MODES = {
    "all": EVERYTHING,
    "max": {"moments_every": 1, "max_tokens": 64},
    # The second micro-batch fills the sample, and the third one finds it full.
    "micro": {"sites": "resid.1", "max_tokens": 150, "micro": 3},
}


@pytest.fixture(scope="session")
def trained(sim, tmp_path_factory):
    """Trainings that several tests look at, each done once: with the lens in a mode, or without a lens."""

    @cache
    def make(device, mode=None, **settings):
        path = None if mode is None else tmp_path_factory.mktemp(mode) / "run"
        return train(device, path, **({} if mode is None else MODES[mode]) | settings)

    return make


def assert_same_weights(one, other):
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("mode", MODES)
def test_a_training_has_the_records_of_the_cpu_and_the_weights_of_no_lens(trained, mode):
    _, weights, there = trained(NAME, mode)
    assert_same_records(trained("cpu", mode)[2], there)
    assert_same_weights(weights, trained(NAME, micro=MODES[mode].get("micro", 1))[1])


def test_between_due_steps_the_host_never_waits_for_the_lens(trained):
    bare, watched = trained(NAME)[0], trained(NAME, "max")[0]
    more = [sum((one - other).values()) for one, other in zip(watched, bare, strict=True)]
    assert [step for step, count in enumerate(more) if count] == SETTINGS["every"]


def test_how_often_the_host_waits_on_a_due_step_does_not_depend_on_the_tokens(sim, trained, tmp_path):
    bare, counts = trained(NAME)[0], []
    for size in (100, 400):
        watched, _, _ = train(sim, tmp_path / str(size), steps=3, size=size, moments_every=1)
        counts.append(watched[2] - bare[2])
    # An iterative fit may take an iteration more or less.
    small, large = (sum(count.values()) for count in counts)
    assert large <= small + 12, (counts[1] - counts[0], counts[0])
    # docs/cost.md says 260 for each site.
    assert large <= 2 * 260


# Where rows are measured.


def held_on_device():
    """The bytes of all tensors on the device, each piece of memory counted once."""
    gc.collect()
    here = [one for one in gc.get_objects() if issubclass(type(one), Tensor) and one.device.type == NAME]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in here}.values())


def held_by_lens(sim, path, dtype=torch.float32, **settings):
    """The bytes that the lens holds on the device in the middle of a due step, before it measures."""
    model = tiny_model().to(sim, dtype)
    model.tie_weights()
    batches = Batches(sim)

    def backward(step):
        model(**batches[step]).loss.backward()
        model.zero_grad()

    backward(0)
    before = held_on_device()
    with Lens(model, run=path, **SETTINGS | {"every": [1]} | settings) as lens:
        backward(0)
        lens.step()
        backward(1)
        return held_on_device() - before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_due_step_holds_on_the_device(sim, tmp_path, dtype):
    tokens, width, sites = 8 * 12, 32, 2
    # The activations of two steps and the gradients of one, in the model's own format.
    rows = 3 * tokens * width * sites * dtype.itemsize
    held = held_by_lens(sim, tmp_path / "sim", dtype)
    # Token ids and the like: for each token of each of the two steps, not for each site.
    assert rows <= held <= rows + 2 * tokens * 64
    # On the host, no row stays on the device: only what the model was called with, the number of tokens, and the loss.
    assert held_by_lens(sim, tmp_path / "cpu", dtype, measure_on="cpu") <= 3 * 8 * tokens + 16
    # Of more tokens than `max_tokens`, no more are held.
    assert held_by_lens(sim, tmp_path / "max", dtype, max_tokens=48) <= rows / 2 + 2 * tokens * 64


def test_what_is_measured_on_the_host_is_the_same(trained):
    _, weights, here = trained(NAME, "all", measure_on="cpu")
    assert_same_records(here, trained(NAME, "all")[2])
    assert_same_weights(weights, trained(NAME)[1])


@pytest.fixture
def no_fp64():
    """The device without fp64, which is asked anew whether it has it."""
    _has_fp64.cache_clear()
    with without(torch.float64):
        yield
    _has_fp64.cache_clear()


def test_a_device_without_fp64_is_measured_on_the_host_and_that_is_said_once(trained, tmp_path, no_fp64):
    with pytest.warns(UserWarning, match="sim has no fp64") as told:
        _, _, there = train(NAME, tmp_path / "sim", **EVERYTHING)
    assert len(told) == 1
    assert_same_records(trained("cpu", "all")[2], there)


def test_whoever_says_that_the_host_is_meant_is_not_told_of_fp64(tmp_path, no_fp64):
    train(NAME, tmp_path / "meant", measure_on="cpu", steps=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_training_in_a_short_format(sim, tmp_path, dtype):
    _, _, here = train("cpu", tmp_path / "cpu", dtype=dtype, steps=3, moments_every=1)
    _, _, there = train(sim, tmp_path / "sim", dtype=dtype, steps=3, moments_every=1)
    assert here.select("metric", "site", "variant").equals(there.select("metric", "site", "variant"))
    # Rounding to the format differs between the two trainings, and by more than the measuring adds.
    for metric in ("anisotropy", "share", "window_anisotropy", "rms_norm"):
        pairs = [records.filter(metric=metric)["value"].to_list() for records in (there, here)]
        assert pairs[0] == pytest.approx(pairs[1], rel=0.1, abs=0.02)


# A finished model.


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The plan of a profile on a device, and the profile on the CPU."""
    folder = tmp_path_factory.mktemp("profile")
    save_tiny(folder / "model")
    models = (str(folder / "model"),)
    plan = partial(Profile, models, sites=("resid.0", "resid.3"), batches=2, batch_tokens=256)
    return plan, run_profile(plan(device="cpu"), folder / "cpu").records


def test_a_profile_is_that_of_the_cpu(profiled, tmp_path):
    plan, here = profiled
    assert_same_records(here, run_profile(plan(device=NAME), tmp_path / "sim").records)


def test_a_profile_on_a_device_without_fp64_is_measured_on_the_host(profiled, tmp_path, no_fp64):
    plan, here = profiled
    with pytest.warns(UserWarning, match="sim has no fp64"):
        there = run_profile(plan(device=NAME), tmp_path / "sim").records
    assert_same_records(here, there)


class Block(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def forward(self, hidden):
        return hidden.to(self.device).sin()


class Spread(nn.Module):
    """A model whose blocks are on several devices, as accelerate spreads one that is too large for any."""

    def __init__(self, devices):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(Block(device) for device in devices)

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return SimpleNamespace(loss=hidden.to("cpu").square().mean())


def rows_of_spread(devices):
    model, tokens, rows = Spread(devices), torch.arange(60).reshape(4, 15) % 50, {}
    sites = find_sites(model, ["blocks.0", "blocks.1"])
    activations(model, sites, tokens, tokens % 5 != 0, lambda site, piece: rows.update({site.name: piece}))
    batch = {"input_ids": tokens, "labels": tokens}
    learned, _ = gradients(model, [batch, batch], sites, "causal", exclude=[3])
    return rows, learned


def test_blocks_on_two_devices_give_the_rows_of_one(sim):
    """Rows are measured where the model begins, with the tokens."""
    assert numbers(rows_of_spread(["cpu", sim])) == numbers(rows_of_spread(["cpu", "cpu"]))

"""What a step does to matrices, against plain autograd and against what must be."""

import polars as pl
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from tangentlens import InputError, Lens, open_run, share
from tangentlens.capture.updates import UpdateCapture, find_matrices
from tangentlens.lens.measures import Fitting
from tangentlens.lens.updates import fitted, matrix_records
from tangentlens.runs.records import KEY, Record
from tiny import tiny_batch, tiny_model

DOWN = "model.layers.1.mlp.down_proj"


def test_gradients_and_updates_are_those_of_the_step():
    model, plain = tiny_model(), tiny_model()
    matrices = find_matrices(model, ["embed", DOWN])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = {matrix.name: matrix.weight.detach().clone() for matrix in matrices}
    with UpdateCapture(matrices) as capture:
        for seed in (0, 1):
            model(**tiny_batch(seed)).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()
    for seed in (0, 1):
        plain(**tiny_batch(seed)).loss.backward()
    for matrix, expected in zip(matrices, (plain.model.embed_tokens, plain.get_submodule(DOWN)), strict=True):
        assert torch.equal(capture.gradient(matrix), expected.weight.grad)
        assert torch.equal(capture.update(matrix), matrix.weight.detach() - before[matrix.name])
        assert not matrix.weight._post_accumulate_grad_hooks


def test_sides_are_the_same_however_a_module_keeps_its_matrix():
    linear = nn.Linear(3, 2, bias=False)
    matrix = find_matrices(nn.ModuleDict({"map": linear}), "map")[0]
    assert matrix.rows(linear.weight, "input").shape == (2, 3)
    assert matrix.rows(linear.weight, "output").shape == (3, 2)
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0)
    up = find_matrices(GPT2LMHeadModel(config), "transformer.h.0.mlp.c_fc")[0]
    assert up.rows(up.weight, "input").shape == (128, 32)
    assert up.rows(up.weight, "output").shape == (32, 128)


def test_embeddings_of_positions_are_refused_before_training():
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    assert [matrix.name for matrix in find_matrices(model, ["embed", "transformer.wte"])]
    with pytest.raises(InputError, match=r"the embedding of tokens, but transformer\.wpe is one of something else"):
        find_matrices(model, "transformer.wpe")


class LowRank(nn.Module):
    """Inputs of a linear map that lie in 4 of 16 dimensions."""

    def __init__(self):
        super().__init__()
        make = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(64, 16)
        thin = torch.randn(64, 4, generator=make) @ torch.randn(4, 16, generator=make)
        self.embed.weight = nn.Parameter(thin, requires_grad=False)
        self.blocks = nn.ModuleList([nn.Linear(16, 12, bias=False), nn.Linear(12, 64)])

    def forward(self, input_ids, labels):
        hidden = self.embed(input_ids).requires_grad_()
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.cross_entropy(hidden.flatten(0, 1), labels.flatten())


def test_every_update_lies_in_the_span_of_the_activations_on_its_input_side(tmp_path):
    """dL/dW is a sum of g x^T, so with SGD nothing else can happen; with weight decay W itself comes in."""
    for decay in (0.0, 0.9):
        model = LowRank()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
        run = tmp_path / f"{decay}"
        with Lens(model, "blocks.0", rank=4, every=[1], run=run, updates="blocks.0") as lens:
            for step in range(2):
                model(**tiny_batch(step)).backward()
                optimizer.step()
                optimizer.zero_grad()
                lens.step()
        found = open_run(run).records.filter(metric="share", site="blocks.0:input", variant="semi_nmf", order=1.0)
        values = dict(found.select("quantity", "value").rows())
        assert values["parameter_gradient"] == pytest.approx(1, abs=1e-4)
        assert (values["update"] == pytest.approx(1, abs=1e-4)) == (decay == 0)


def train(model, lens, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model(**tiny_batch(step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        lens.step()


def test_records_are_shares_of_the_step_in_proxies_of_the_step_before(tmp_path):
    model, plain = tiny_model(), tiny_model()
    with Lens(model, "resid.1", rank=4, every=[1], run=tmp_path / "run", updates=DOWN) as lens:
        train(model, lens)
    seen = []
    handle = plain.get_submodule(DOWN).register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(**tiny_batch(0)).loss.backward()
    handle.remove()
    optimizer.step()
    optimizer.zero_grad()
    weight = plain.get_submodule(DOWN).weight
    before = weight.detach().clone()
    plain(**tiny_batch(1)).loss.backward()
    gradient = weight.grad.clone()
    optimizer.step()
    changes = {"parameter_gradient": gradient, "update": weight.detach() - before}
    records = open_run(tmp_path / "run").records
    assert not records.select(KEY).is_duplicated().any()
    for side, activations, flip in (("input", seen[0][0], False), ("output", seen[0][1], True)):
        proxies = fitted(activations.detach().flatten(0, 1), Fitting("semi_nmf", 4, bins=None, seed=0))
        for quantity, change in changes.items():
            for name, order in (("semi_nmf", 1.0), ("semi_nmf", 2.0), ("pca", 1.0)):
                here = records.filter(
                    metric="share", site=f"{DOWN}:{side}", quantity=quantity, variant=name, order=order
                )
                rows = change.T if flip else change
                # Moments around 0.
                expected = share(torch.cat([rows, -rows]), proxies[name], order)
                assert here["value"].item() == pytest.approx(expected, rel=1e-4)
    random = records.filter(metric="share", site=f"{DOWN}:input", quantity="update", variant="random", order=1.0)
    assert random["value"].item() == pytest.approx(4 / seen[0][0].shape[-1])


def test_rows_of_an_embedding_are_told_by_frequency_and_over_types(tmp_path):
    model = tiny_model()
    counts = torch.arange(64)
    with Lens(model, "resid.1", rank=4, every=[1], run=tmp_path / "run", updates="embed", counts=counts) as lens:
        train(model, lens)
    run = open_run(tmp_path / "run")
    found = run.records.filter(metric="share", variant="semi_nmf", order=1.0, quantity="update", site="embed:output")
    rows = dict(found.select("freq_bin", "n").rows())
    assert {"all", "input.0", "input.1", "input.2", "input.3"} == set(rows)
    assert set(found["ci_over"]) == {"types"}
    tied = run.manifest["lenses"]["model"]["updates"]["embed"] == "Embedding, tied to another"
    assert tied == (model.lm_head.weight is model.model.embed_tokens.weight)
    # With plain SGD, a row that nothing came to does not move.
    assert rows["all"] == (64 if tied else len(tiny_batch(1)["input_ids"].unique()))
    part = run.records.filter(site="embed:output (as input)", metric="share", freq_bin="all", variant="semi_nmf")
    assert (part.height > 0) == tied
    if tied:
        assert part["n"].unique().to_list() == [len(tiny_batch(1)["input_ids"].unique())]


def test_a_step_without_one_before_is_told(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=[0], run=tmp_path / "run", updates=DOWN) as lens:
        train(model, lens, steps=1)
    told = open_run(tmp_path / "run").records.filter(pl.col("site").str.starts_with(DOWN))
    assert told["metric"].to_list() == ["unmeasured"] * 2
    assert "must have activations to fit the proxy on" in told["detail"][0]


def test_what_has_no_matrix_is_refused():
    with pytest.raises(InputError, match=r"mlp.0 has none, but it has gate_proj, up_proj, down_proj inside"):
        find_matrices(tiny_model(), "mlp.0")
    with pytest.raises(InputError, match="a site must exist in the model, but 'nothing' does not"):
        find_matrices(tiny_model(), "nothing")
    fitting = Fitting("semi_nmf", 2, bins=None, seed=0)
    with pytest.raises(InputError, match="must not all be zero"):
        list(matrix_records(Record(model="m"), torch.zeros(3, 8), fitted(torch.randn(50, 8), fitting)))


class Tied(nn.Module):
    """An embedding that is also the head, sparse or used without its module."""

    def __init__(self, sparse=False, by_hand=False):
        super().__init__()
        self.embed = nn.Embedding(64, 16, padding_idx=0, sparse=sparse)
        self.blocks = nn.ModuleList([nn.Linear(16, 16)])
        self.head = nn.Linear(16, 64, bias=False)
        self.by_hand = by_hand
        if not sparse:
            self.head.weight = self.embed.weight

    def forward(self, input_ids, labels):
        weight = self.embed.weight
        hidden = nn.functional.embedding(input_ids, weight) if self.by_hand else self.embed(input_ids)
        return nn.functional.cross_entropy(self.head(self.blocks[0](hidden)).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("kind", [{"sparse": True}, {"by_hand": True}, {}])
def test_embeddings_of_all_kinds_do_not_end_a_training(kind, tmp_path):
    model = Tied(**kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Lens(model, "resid.1", rank=4, every=[1, 2], run=tmp_path / "run", updates="embed") as lens:
        for step in range(3):
            batch = tiny_batch(step)
            batch["input_ids"][:, 0] = 0
            model(**batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step()
    records = open_run(tmp_path / "run").records
    shares = records.filter(metric="share", site="embed:output", quantity="update", step=2)
    assert (shares.height > 0) == (not kind.get("by_hand"))
    part = records.filter(site="embed:output (as input)", metric="share", step=2, variant="semi_nmf", order=1.0)
    if not kind:
        # Not the padding, to which no gradient comes.
        assert part["n"].item() == len(set(tiny_batch(2)["input_ids"][:, 1:].flatten().tolist()) - {0})


def test_a_step_that_was_skipped_leaves_nothing(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=[1, 2], run=tmp_path / "run", updates=DOWN) as lens:
        train(model, lens, steps=1)
        model(**tiny_batch(1)).loss.backward()
        lens.skip("overflow")
        model.zero_grad()
        model.get_submodule(DOWN).weight.requires_grad_(False)
        model(**tiny_batch(2)).loss.backward()
        lens.step()
    told = open_run(tmp_path / "run").records.filter(pl.col("site").str.starts_with(DOWN), step=2)
    assert told.filter(quantity="parameter_gradient", metric="share").is_empty()
    assert "must have a gradient, but none came" in told.filter(metric="unmeasured")["detail"][0]

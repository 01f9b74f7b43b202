import pytest
import torch
from torch import nn

from tangentlens import InputError
from tangentlens.capture.batch import objective_of
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tiny import tiny_batch, tiny_model


def reference(model, batch):
    """Hidden states and their gradients as the library itself offers them, without hooks."""
    out = model(**batch, output_hidden_states=True)
    for hidden in out.hidden_states:
        hidden.retain_grad()
    out.loss.backward()
    model.zero_grad()
    return [(hidden.detach(), hidden.grad) for hidden in out.hidden_states]


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_rows_are_the_hidden_states_and_their_true_gradients(kind):
    model, batch = tiny_model(kind), tiny_batch()
    sites = find_sites(model, ["resid", "final"])
    with Capture(model, sites) as capture:
        model(**batch).loss.backward()
    found = [capture.rows(site) for site in sites]
    # Hugging Face lists the stream before each block, and last the output of the final norm.
    for (hidden, gradient), rows in zip(reference(model, batch), [*found[:2], found[3]], strict=True):
        assert torch.equal(rows.activations, hidden.flatten(0, 1))
        torch.testing.assert_close(rows.gradients, gradient.flatten(0, 1), atol=1e-9, rtol=1e-5)
    assert found[2].gradients.any()


def test_each_row_carries_its_token_its_target_and_its_sequence():
    batch = tiny_batch(batch=3, length=4)
    for kind, targets in (("decoder", batch["labels"].roll(-1, dims=1)), ("encoder", batch["labels"])):
        model = tiny_model(kind)
        site = find_sites(model, "resid.1")[0]
        with Capture(model, [site], objective=objective_of(model)) as capture:
            model(**batch).loss.backward()
        rows = capture.rows(site)
        if kind == "decoder":
            targets[:, -1] = -100
        assert rows.tokens.tolist() == batch["input_ids"].flatten().tolist()
        assert rows.targets.tolist() == targets.flatten().tolist()
        assert rows.sequences.tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_excluded_tokens_are_left_out_by_mask_and_by_id(side):
    model, batch = tiny_model(), tiny_batch(batch=4, length=8)
    mask = torch.ones(4, 8, dtype=torch.long)
    mask[1, :3] = 0
    mask = mask if side == "left" else mask.flip(1)
    batch["input_ids"][2, 5] = 0
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site], exclude=[0]) as capture:
        model(**batch, attention_mask=mask).loss.backward()
    keep = mask.bool() & (batch["input_ids"] != 0)
    rows = capture.rows(site)
    assert torch.equal(rows.tokens, batch["input_ids"][keep])
    assert rows.activations.shape == (4 * 8 - 3 - 1, 32)


def test_several_backward_passes_of_one_step_add_their_sequences():
    model = tiny_model()
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        for seed in range(3):
            model(**tiny_batch(seed, batch=2, length=4)).loss.backward()
    assert capture.rows(site).sequences.unique(return_counts=True)[1].tolist() == [4] * 6


def test_passes_that_are_never_back_propagated_leave_nothing():
    model = tiny_model()
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        model(**tiny_batch(1))
        with torch.no_grad():
            model(**tiny_batch(2))
        model(**tiny_batch(3)).loss.backward()
    assert torch.equal(capture.rows(site).tokens, tiny_batch(3)["input_ids"].flatten())


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_rows_once(reentrant):
    expected, found = (tiny_model() for _ in range(2))
    found.gradient_checkpointing_enable({"use_reentrant": reentrant})
    found.train()
    rows = []
    for model in (expected, found):
        site = find_sites(model, "resid.1")[0]
        with Capture(model, [site]) as capture:
            model(**tiny_batch()).loss.backward()
        rows.append(capture.rows(site))
    assert len(rows[1].tokens) == len(rows[0].tokens)
    torch.testing.assert_close(rows[1].gradients, rows[0].gradients)


def test_hooks_are_gone_after_the_block_also_after_an_exception():
    model = tiny_model()
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())  # noqa: E731
    before = hooks()
    with pytest.raises(RuntimeError, match="boom, with 5 hooks"), Capture(model, find_sites(model, "resid")):
        raise RuntimeError(f"boom, with {hooks() - before} hooks")
    assert hooks() == before


def test_a_site_without_a_gradient_is_an_error_not_an_empty_row():
    model = tiny_model()
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        model(**tiny_batch())
    with pytest.raises(InputError, match=r"no gradient came through it since the last step; call backward"):
        capture.rows(site)


def test_a_site_that_carries_no_token_rows_is_refused():
    model = tiny_model()
    with (
        Capture(model, find_sites(model, "model.rotary_emb")),
        pytest.raises(InputError, match=r"must carry a \(batch, length, width\) tensor"),
    ):
        model(**tiny_batch())


def test_a_model_called_without_token_ids_is_refused():
    model = nn.Sequential(nn.Linear(3, 3))
    with (
        Capture(model, find_sites(model, "0")),
        pytest.raises(InputError, match="must be called with token ids"),
    ):
        model(torch.zeros(2, 4, 3))


class Plain(nn.Module):
    """A model of one's own: token ids in, logits out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x).tanh()
        return x


def test_a_plain_module_works_with_a_positional_argument():
    model = Plain()
    sites = find_sites(model, ["embed", "resid"])
    with Capture(model, sites) as capture:
        model(torch.arange(12).reshape(3, 4)).square().sum().backward()
    assert [capture.rows(site).gradients.shape for site in sites] == [(12, 8)] * 4


def test_with_padding_every_row_is_that_of_its_own_token():
    model, batch = tiny_model(), tiny_batch(batch=4, length=8)
    mask = torch.ones(4, 8, dtype=torch.long)
    mask[1, :3] = 0
    mask[3, 6:] = 0
    expected = reference(model, {**batch, "attention_mask": mask})[1]
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        model(**batch, attention_mask=mask).loss.backward()
    rows = capture.rows(site)
    assert torch.equal(rows.activations, expected[0][mask.bool()])
    torch.testing.assert_close(rows.gradients, expected[1][mask.bool()])


def test_a_mask_counts_however_it_is_passed():
    model, batch = tiny_model(), tiny_batch(batch=4, length=8)
    mask = torch.ones(4, 8, dtype=torch.long)
    mask[1, :3] = 0
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        model(batch["input_ids"], mask, labels=batch["labels"]).loss.backward()
    assert len(capture.rows(site).tokens) == 4 * 8 - 3


def test_several_backward_passes_through_one_forward_pass_add_up():
    model, batch = tiny_model(), tiny_batch()
    site = find_sites(model, "resid.1")[0]
    found = []
    for together in (True, False):
        with Capture(model, [site]) as capture:
            out = model(**batch)
            a, b = out.loss, out.logits.square().mean()
            if together:
                (a + b).backward()
            else:
                a.backward(retain_graph=True)
                b.backward()
        found.append(capture.rows(site))
    assert len(found[1].tokens) == len(found[0].tokens)
    torch.testing.assert_close(found[1].gradients, found[0].gradients)


def test_a_backward_pass_after_the_rows_were_taken_is_harmless():
    model = tiny_model()
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        first, second = (model(**tiny_batch(seed)).loss for seed in (0, 1))
        first.backward()
        assert len(capture.rows(site).tokens) == 96
        second.backward()


def test_a_module_that_runs_several_times_in_one_pass_is_refused():
    class Shared(Plain):
        def forward(self, ids):
            x = self.embed(ids)
            for _ in range(3):
                x = x + self.blocks[0](x).tanh()
            return x

    model = Shared()
    site = find_sites(model, "blocks.0")[0]
    with Capture(model, [site]) as capture:
        model(torch.arange(12).reshape(3, 4)).square().sum().backward()
    with pytest.raises(InputError, match="must run once in a forward pass"):
        capture.rows(site)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_a_wrapped_model_has_the_objective_of_what_is_inside(wrap):
    assert objective_of(wrap(tiny_model())) == "causal"
    assert objective_of(wrap(tiny_model("encoder"))) == "masked"
    assert objective_of(Plain()) is None


def test_a_pass_that_is_never_back_propagated_takes_no_room():
    model = tiny_model()
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site], max_tokens=96) as capture:
        model(**tiny_batch(1))
        model(**tiny_batch(2)).loss.backward()
    assert torch.equal(capture.rows(site).tokens, tiny_batch(2)["input_ids"].flatten())


def test_a_part_of_the_model_used_on_its_own_is_no_pass():
    model, batch = tiny_model(), tiny_batch()
    site = find_sites(model, "embed")[0]
    with Capture(model, [site]) as capture:
        loss = model(**batch).loss
        model.get_input_embeddings()(batch["input_ids"])
        loss.backward()
    assert len(capture.rows(site).tokens) == 96


def test_positions_that_jump_ahead_begin_no_sequence():
    model, batch = tiny_model(), tiny_batch(batch=2, length=4)
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        model(**batch, position_ids=torch.tensor([[0, 2, 3, 9], [0, 1, 0, 5]])).loss.backward()
    assert capture.rows(site).sequences.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


def test_without_labels_padding_is_nobodys_target():
    model, tokens = tiny_model(), tiny_batch(batch=2, length=4)["input_ids"]
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site], objective="causal") as capture:
        model(input_ids=tokens, attention_mask=mask).logits.square().mean().backward()
    expected = [*tokens[0, 1:].tolist(), -100, int(tokens[1, 1]), -100]
    assert capture.rows(site).targets.tolist() == expected


def test_a_part_that_is_called_module_is_no_wrapper():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = Plain()
            self.head = nn.Linear(8, 8)

        def forward(self, ids, attention_mask):
            return self.head(self.module(ids))

    model, mask = Outer(), torch.ones(3, 4).bool()
    mask[0, 2:] = False
    sites = find_sites(model, ["resid.0", "head"])
    with Capture(model, sites) as capture:
        model(torch.arange(12).reshape(3, 4), mask).square().sum().backward()
    assert [len(capture.rows(site).tokens) for site in sites] == [10, 10]


def test_ids_may_have_any_name():
    model = Plain()
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]) as capture:
        model(ids=torch.arange(12).reshape(3, 4)).square().sum().backward()
    assert capture.rows(site).tokens.tolist() == list(range(12))


@pytest.mark.parametrize("square", [True, False])
def test_sequence_first_modules_are_refused(square):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.rnn = nn.LSTM(8, 8)

        def forward(self, ids):
            return self.rnn(self.embed(ids).transpose(0, 1))[0]

    model = First()
    with (
        Capture(model, find_sites(model, "resid.1")),
        pytest.raises(
            InputError, match=r"must carry the batch first, then positions, but its module has batch_first=F"
        ),
    ):
        model(torch.arange(16 if square else 12).reshape(4, -1))


def test_a_sample_is_of_all_micro_batches_and_has_the_size_asked_for():
    model = tiny_model()
    site = find_sites(model, "resid.1")[0]
    for together in (True, False):
        with Capture(model, [site], max_tokens=96) as capture:
            losses = []
            for number in range(4):
                losses.append(model(**tiny_batch(number)).loss)
                if not together:
                    losses.pop().backward()
            if together:
                sum(losses).backward()
        assert len(capture.activations()[site.name].read()) == 96
        rows = capture.rows(site)
        assert len(rows.tokens) == len(rows.gradients) == 96
        # Sequences are numbered on from batch to batch, by as many as there are tokens.
        _, counts = (rows.sequences // 96).unique(return_counts=True)
        assert len(counts) == 4
        assert counts.min() > 10


class ProjectedInputs(nn.Module):
    """Frozen inputs that are a view, and need a gradient only from there on."""

    def __init__(self):
        super().__init__()
        self.embed, self.project = nn.Embedding(64, 16), nn.Linear(16, 32)
        self.requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, input_ids):
        hidden = self.project(self.embed(input_ids)).requires_grad_()
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


def test_a_view_of_what_needs_no_gradient_is_watched_itself():
    model = ProjectedInputs()
    site = find_sites(model, "resid.0")[0]
    with Capture(model, [site]) as capture:
        model(tiny_batch()["input_ids"]).sum().backward()
    expected = model.blocks[1].weight.sum(dim=0) @ model.blocks[0].weight
    torch.testing.assert_close(capture.rows(site).gradients, expected.expand(96, -1))

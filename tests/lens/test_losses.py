"""The loss of a step when none is passed: what the model returned, in mean over the batches of the step."""

import pytest
import torch
from torch import nn

from loops import batches, n_hooks
from tangentlens import Lens, open_run
from tangentlens.lens.losses import Losses, returned_loss
from tiny import tiny_batch, tiny_model

SETTINGS = {"sites": "resid.1", "rank": 4, "every": 2}


class Tuple(nn.Module):
    """A model that returns what nanoGPT's does."""

    def __init__(self):
        super().__init__()
        self.inner = tiny_model()

    def forward(self, input_ids, labels=None):
        output = self.inner(input_ids, labels=labels)
        return output.logits, output.loss


def losses_of(run):
    return open_run(run).records.filter(metric="loss").sort("step")["value"].to_list()


def accumulated(model, run, loss_of=lambda output: output.loss, between=lambda: None):
    """Steps of two batches each; the loop divides each loss in place. Return the mean losses of the steps."""
    means = []
    with Lens(model, run=run, **SETTINGS) as lens:
        for _ in range(3):
            losses = []
            for part in batches(4)[:2]:
                loss = loss_of(model(**part))
                losses.append(loss.item())
                loss /= 2
                loss.backward()
                between()
            lens.step()
            means.append(sum(losses) / 2)
    return means[::2]


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [(tiny_model, lambda output: output.loss), (Tuple, lambda output: output[1])],
    ids=["transformers", "nanoGPT"],
)
def test_without_a_loss_it_is_the_mean_of_what_the_model_returned(model, loss_of, tmp_path):
    expected = accumulated(model(), tmp_path / "run", loss_of)
    assert losses_of(tmp_path / "run") == pytest.approx(expected, rel=1e-6)


def test_a_loss_that_is_passed_is_written_as_it_is(tmp_path):
    model = tiny_model()
    with Lens(model, run=tmp_path / "run", **SETTINGS) as lens:
        model(**tiny_batch()).loss.backward()
        lens.step(1.25)
    assert losses_of(tmp_path / "run") == [1.25]


def test_passes_that_do_not_train_have_no_part_in_the_loss(tmp_path):
    model, other = tiny_model(), tiny_batch(seed=7)

    def look():
        model(**other)
        with torch.no_grad():
            model(**other)

    expected = accumulated(model, tmp_path / "run", between=look)
    assert losses_of(tmp_path / "run") == pytest.approx(expected, rel=1e-6)


def test_a_model_that_returns_no_loss_has_none_in_the_records(tmp_path):
    model, batch = tiny_model(), tiny_batch()
    with Lens(model, run=tmp_path / "run", **SETTINGS) as lens:
        logits = model(batch["input_ids"]).logits
        nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).backward()
        lens.step()
    assert losses_of(tmp_path / "run") == []


def test_only_a_number_with_a_gradient_can_be_the_loss():
    loss, rows = torch.ones((), requires_grad=True), torch.ones(2, 3, requires_grad=True)
    assert returned_loss((loss, rows)) is returned_loss([rows, loss]) is returned_loss({"loss": loss}) is loss
    for output in (rows, (rows, loss.detach()), {"loss": None}, {"logits": rows}, (loss, loss * 2), None, "loss"):
        assert returned_loss(output) is None


def test_losses_divided_by_the_tokens_of_the_whole_step_add_up_whatever_the_scale():
    """As the Trainer has them: over ranks, it multiplies each by their number, and mixed precision by its scale."""
    model, parts, scales = tiny_model(), batches(4)[:2], iter((256.0, 512.0))
    n, scale = sum(part["labels"][:, 1:].numel() for part in parts), 1.0
    with Losses(model, lambda: scale) as losses:
        for part in parts:
            scale = next(scales)
            (model(**part, num_items_in_batch=n).loss * scale).backward()
    whole = model(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]}).loss
    assert losses.mean() == pytest.approx(whole.item(), rel=1e-6)
    assert n_hooks(model) == 0

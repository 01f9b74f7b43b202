import json

import pytest
import torch

from tangentlens import InputError, Lens, open_run
from tangentlens.alignment.concepts import BEFORE
from tiny import tiny_batch, tiny_model


def text(ids):
    return "".join(f"<{token}>" for token in ids)


def train(path, steps, model=None, state=None, first=0, **settings):
    torch.manual_seed(0)
    model = tiny_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Lens(model, "resid", rank=4, every=1, run=path, step=first, **({"concepts": text} | settings)) as lens:
        if state is not None:
            lens.load_state_dict(state)
        for step in range(first, first + steps):
            model(**tiny_batch(step)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step()
        return lens.run, lens.state_dict(), model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("concepts") / "run", 3)[0]


def test_a_table_holds_the_concepts_of_a_step_with_their_tokens_in_context(run):
    table = run.concepts("resid.1", 2)
    assert sorted(table["concept"]) == [0, 1, 2, 3]
    assert table["energy_share"].is_sorted(descending=True)
    tokens = tiny_batch(2)["input_ids"]
    for row in table.iter_rows(named=True):
        assert row["energy_share_low"] <= row["energy_share"] <= row["energy_share_high"]
        assert row["chance"] == pytest.approx(1 / 32)
        for token, around in zip(row["tokens"], row["contexts"], strict=True):
            assert f"[{token}]" in around
            assert any(around.replace("[", "").replace("]", "") in text(sequence.tolist()) for sequence in tokens)


def test_the_last_step_is_the_default_and_what_is_not_there_is_named(run):
    assert run.concepts("resid.1").equals(run.concepts("resid.1", 2))
    with pytest.raises(InputError, match=r"resid\.0, resid\.1, resid\.2"):
        run.concepts("resid.9")
    with pytest.raises(InputError, match="0, 1, 2"):
        run.concepts("resid.1", 7)


def test_a_run_that_was_not_asked_has_none_and_says_how(tmp_path):
    run, _, _ = train(tmp_path / "run", 1, concepts=None)
    with pytest.raises(InputError, match="Lens\\(concepts="):
        run.concepts("resid.1")


def test_concepts_do_not_change_other_numbers(run, tmp_path):
    plain, _, _ = train(tmp_path / "run", 3, concepts=None)
    asked = run.records.filter(~run.records["metric"].str.starts_with("concept_"))
    assert asked.drop("run").equals(plain.records.drop("run"))


def test_a_training_that_continues_has_the_same_concepts(run, tmp_path):
    _, state, model = train(tmp_path / "run", 2)
    assert any(name.startswith("concepts/") for name in state)
    continued, _, _ = train(tmp_path / "run", 1, model, state, first=2, tokens_seen=int(state["tokens_seen"]))
    assert continued.concepts("resid.1").drop("born", "lineage").equals(run.concepts("resid.1").drop("born", "lineage"))


def test_a_text_that_cannot_be_found_does_not_end_a_training(tmp_path):
    def broken(ids):
        raise KeyError(ids[0])

    with pytest.warns(UserWarning, match="no concepts: the text of token ids must be found"):
        run, _, _ = train(tmp_path / "run", 1, concepts=broken)
    assert run.records.filter(metric="share").height
    assert "KeyError" in run.records.filter(metric="unmeasured", variant="concepts")["detail"][0]


def test_something_that_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match="tokenizer, or a function"):
        Lens(tiny_model(), run=tmp_path / "run", concepts="words")


def test_a_tokenizer_is_asked_to_decode(tmp_path):
    class Words:
        def decode(self, ids):
            return " ".join(f"w{token}" for token in ids)

    run, _, _ = train(tmp_path / "run", 1, concepts=Words())
    assert all(token.startswith("w") for token in run.concepts("resid.1")["tokens"][0])


def test_contexts_are_whole_though_few_tokens_are_measured(tmp_path):
    run, _, _ = train(tmp_path / "run", 1, max_tokens=96)
    rows = run.records.filter(metric="concept_tokens")
    told = [entry for detail in rows["detail"] for entry in json.loads(detail)]
    # With holes, nearly no context would be complete.
    assert max(before.count("<") for before, *_ in told) == BEFORE


def test_it_is_kept_small(run):
    words = run.records.filter(metric="concept_tokens")["detail"]
    assert words.str.len_bytes().max() < 6 * 400


def test_a_run_can_be_opened_again(run):
    assert open_run(run.path).concepts("resid.1").equals(run.concepts("resid.1"))

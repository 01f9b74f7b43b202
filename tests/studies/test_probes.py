"""Tasks for probes, and what is told of them, on a text that can be read."""

import pytest
import torch

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.models.small import small_model
from tangentlens.runs.records import Record
from tangentlens.studies.probes import BEGINS, CONTINUES, NUMBER, OTHER, SPACE, probe_records, tasks, token_class

TYPES = [" The", "re", " is", " 7", ".", "\n", " A", " b"]
COUNTS = torch.tensor([100, 80, 60, 50, 50, 50, 30, 20])


def spell(ids):
    return "".join(TYPES[number] for number in ids)


@pytest.mark.parametrize(
    ("text", "of"),
    [(" The", BEGINS), ("re", CONTINUES), (" 7", NUMBER), ("7th", NUMBER), ("\n\n", SPACE), ("", SPACE), ("._", OTHER)],
)
def test_the_class_of_a_token_is_that_of_its_text(text, of):
    assert token_class(text) == of


def test_tasks_ask_for_the_token_and_for_the_next_one():
    sequences = torch.tensor([[0, 1, 2, 3, 4, 5]] * 50)
    asked = tasks(sequences, spell, COUNTS)
    assert asked["token class"][0].tolist() == [BEGINS, CONTINUES, BEGINS, NUMBER, OTHER, SPACE]
    # The fourth token is followed by a full stop; the last one is followed by nothing.
    assert asked["end of a sentence"][0].tolist() == [0, 0, 0, 1, 0, -1]
    expected = FrequencyBins.of(COUNTS).assign(torch.arange(1, 6)).tolist()
    assert asked["frequency of the next token"][0].tolist() == [*expected, -1]


def test_rare_classes_are_left_out():
    sequences = torch.tensor([[0, 1]] * 50 + [[3, 1]])
    assert tasks(sequences, spell, COUNTS)["token class"][-1].tolist() == [-1, CONTINUES]


@pytest.fixture
def sequences(generator):
    return torch.randint(len(TYPES), (128, 16), generator=generator)


def test_an_embedding_tells_the_class_of_its_token_and_not_of_the_next(sequences):
    model = small_model("decoder", len(TYPES), 1, 32, 16, 0, seed=0)
    asked = tasks(sequences, spell, COUNTS)
    found = {
        record.variant: record
        for record in probe_records(Record(model="one", step=3), model, ("resid.0",), sequences, asked)
    }
    assert set(found) == set(asked)
    assert found["token class"].value == pytest.approx(1.0)
    assert found["token class"].ci_over == "sequences"
    # Tokens are drawn one by one, so that the next one cannot be known.
    nothing = found["end of a sentence"]
    assert abs(nothing.value) < 0.1
    assert (nothing.site, nothing.step, nothing.metric) == ("resid.0", 3, "probe_skill")


def test_a_text_of_one_class_is_told_to_have_no_probe():
    model, same = small_model("decoder", len(TYPES), 1, 32, 16, 0, seed=0), torch.zeros(32, 16, dtype=torch.long)
    asked = tasks(same, spell, COUNTS)
    told = list(probe_records(Record(model="one"), model, ("resid.0",), same, asked))
    assert {record.metric for record in told} == {"unmeasured"}
    assert all("needs at least two classes" in record.detail for record in told)

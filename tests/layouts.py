"""Models as people write them themselves: small ones in the public layouts of nanoGPT, litgpt, TransformerLens,
torchtune, torchtitan and x-transformers.

Names of modules around the residual stream, and what is added to it where, are those of the packages. Each forward pass
records the stream by hand, in `states`: before the first block, and after each.
"""

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, VOCABULARY, LENGTH = 3, 32, 64, 40


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, *args):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class FeedForward(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))


def norm():
    """A norm that is not the identity on rows that are normal already."""
    layer = nn.LayerNorm(WIDTH)
    nn.init.normal_(layer.weight, 1.0, 0.2)
    return layer


class Model(nn.Module):
    def record(self, x, first=False):
        self.states = [] if first else self.states
        x.retain_grad()
        self.states.append(x)
        return x


class NanoGPT(Model):
    """Called with targets, which are aligned already; -1 is no target. It returns logits and loss."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = norm(), Attention(), norm(), FeedForward()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList(self.Block() for _ in range(LAYERS)),
                "ln_f": norm(),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        places = torch.arange(idx.shape[1])
        x = self.record(self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(places)), first=True)
        for block in self.transformer.h:
            x = self.record(block(x))
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class LitGPT(Model):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.attn, self.post_attention_norm = norm(), Attention(), norm()
            self.norm_2, self.mlp, self.post_mlp_norm = norm(), FeedForward(), norm()

        def forward(self, x, cos, sin, mask=None, input_pos=None):
            x = self.post_attention_norm(self.attn(self.norm_1(x), cos, sin, mask, input_pos)) + x
            return self.post_mlp_norm(self.mlp(self.norm_2(x))) + x

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        blocks = nn.ModuleList(self.Block() for _ in range(LAYERS))
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(VOCABULARY, WIDTH), "h": blocks, "ln_f": norm()})

    def forward(self, idx, input_pos=None):
        x = self.record(self.transformer.wte(idx) * WIDTH**0.5, first=True)
        angles = torch.zeros(1, idx.shape[1], 8)
        for block in self.transformer.h:
            x = self.record(block(x, angles, angles))
        return self.lm_head(self.transformer.ln_f(x))


class HookedTransformer(Model):
    """Its embedding is no `nn.Embedding`, and hook points are modules that return what they are given."""

    class Embed(nn.Module):
        def __init__(self, name, n):
            super().__init__()
            self.name = name
            self.register_parameter(name, nn.Parameter(torch.randn(n, WIDTH)))

        def forward(self, tokens):
            return getattr(self, self.name)[tokens]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln1_post, self.ln2, self.ln2_post = norm(), norm(), norm(), norm()
            self.attn, self.mlp = Attention(), FeedForward()
            for name in ("attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post"):
                self.add_module(f"hook_{name}", nn.Identity())

        def forward(self, resid_pre, attention_mask=None):
            resid_pre = self.hook_resid_pre(resid_pre)
            attn_out = self.hook_attn_out(self.ln1_post(self.attn(self.ln1(resid_pre))))
            resid_mid = self.hook_resid_mid(resid_pre + attn_out)
            mlp_out = self.hook_mlp_out(self.ln2_post(self.mlp(self.ln2(resid_mid))))
            return self.hook_resid_post(resid_mid + mlp_out)

    def __init__(self):
        super().__init__()
        self.embed, self.hook_embed = self.Embed("W_E", VOCABULARY), nn.Identity()
        self.pos_embed, self.hook_pos_embed = self.Embed("W_pos", LENGTH), nn.Identity()
        self.blocks = nn.ModuleList(self.Block() for _ in range(LAYERS))
        self.ln_final = norm()
        self.unembed = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input, return_type="logits"):
        places = torch.arange(input.shape[1])
        x = self.hook_embed(self.embed(input)) + self.hook_pos_embed(self.pos_embed(places))
        x = self.record(x, first=True)
        for block in self.blocks:
            x = self.record(block(x, attention_mask=None))
        return self.unembed(self.ln_final(x))


class Torchtune(Model):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.mlp = Attention(), FeedForward()
            self.sa_norm, self.mlp_norm, self.sa_scale, self.mlp_scale = norm(), norm(), norm(), norm()

        def forward(self, x, *, mask=None, input_pos=None):
            h = self.sa_norm(x)
            h = self.sa_scale(self.attn(h, h)) + x
            return h + self.mlp_scale(self.mlp(self.mlp_norm(h)))

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(self.Block() for _ in range(LAYERS))
        self.norm = norm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, *, mask=None, input_pos=None):
        h = self.record(self.tok_embeddings(tokens), first=True)
        for layer in self.layers:
            h = self.record(layer(h, mask=mask, input_pos=input_pos))
        return self.output(self.norm(h))


class Torchtitan(Model):
    """Its blocks are in a `ModuleDict`."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.feed_forward = Attention(), FeedForward()
            self.attention_norm, self.ffn_norm = norm(), norm()

        def forward(self, x, freqs_cis, attention_masks=None, positions=None):
            h = x + self.attention(self.attention_norm(x), freqs_cis, attention_masks, positions)
            return h + self.feed_forward(self.ffn_norm(h))

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): self.Block() for i in range(LAYERS)})
        self.norm = norm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, attention_masks=None, positions=None):
        h = self.record(self.tok_embeddings(tokens), first=True)
        for layer in self.layers.values():
            h = self.record(layer(h, torch.zeros(tokens.shape[1], 4), attention_masks=attention_masks))
        return self.output(self.norm(h))


class XTransformer(Model):
    """Attention and feed-forward alternate in one list, each with its norms and the module that adds to the stream.

    Args:
        types: The layers: a is attention, f is feed-forward.
        norms: Which norms there are: before a layer, after it, and after the addition.
        order: The order in which the layers run.
        per_block: How many layers make a block.
    """

    class Attend(Attention):
        def forward(self, x, mask=None):
            return super().forward(x), {"values": x}

    class Residual(nn.Module):
        def forward(self, x, residual, layer_hiddens=None):
            return x + residual

    class Layers(nn.Module):
        def __init__(self, types, norms, order):
            super().__init__()
            self.layers = nn.ModuleList()
            self.layer_integrators = nn.ModuleList([None] * len(types))
            self.final_norm = norm() if norms[0] else nn.Identity()
            self.skip_combines = nn.ModuleList([None] * len(types))
            self.layer_types, self.layers_execute_order = types, order
            for kind in types:
                layer = XTransformer.Attend() if kind == "a" else FeedForward()
                own = nn.ModuleList([norm() if there else None for there in norms])
                self.layers.append(nn.ModuleList([own, layer, XTransformer.Residual()]))

    def __init__(self, types=("a", "f") * LAYERS, norms=(True, False, False), order=None, per_block=2):
        super().__init__()
        self.per_block = per_block
        self.token_emb = nn.ModuleDict({"emb": nn.Embedding(VOCABULARY, WIDTH)})
        self.pos_emb = nn.ModuleDict({"emb": nn.Embedding(LENGTH, WIDTH)})
        self.attn_layers = self.Layers(types, norms, tuple(range(len(types))) if order is None else order)
        self.to_logits = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x, return_embeddings=False):
        x = self.token_emb.emb(x) + self.pos_emb.emb(torch.arange(x.shape[1]))
        x = self.record(x, first=True)
        for run, i in enumerate(self.attn_layers.layers_execute_order):
            (before, after, last), layer, add = self.attn_layers.layers[i]
            stream = x
            x = x if before is None else before(x)
            out = layer(x, mask=None)[0] if self.attn_layers.layer_types[i] == "a" else layer(x)
            x = add(out if after is None else after(out), stream, layer_hiddens=[])
            x = x if last is None else last(x)
            if (run + 1) % self.per_block == 0:
                self.record(x)
        return self.to_logits(self.attn_layers.final_norm(x))


LAYOUTS = {
    "nanogpt": NanoGPT,
    "litgpt": LitGPT,
    "hooked_transformer": HookedTransformer,
    "torchtune": Torchtune,
    "torchtitan": Torchtitan,
    "x_transformers": XTransformer,
    "x_transformers_sandwich_norm": lambda: XTransformer(norms=(True, True, False)),
    "x_transformers_post_norm": lambda: XTransformer(norms=(False, False, True)),
    "x_transformers_tied": lambda: XTransformer(types=("a", "f"), order=(0, 1) * LAYERS),
    # No sequence of types is repeated, so that each layer is a block.
    "x_transformers_irregular": lambda: XTransformer(types=("a", "a", "f"), per_block=1),
    # The two blocks share their attention and not the rest.
    "x_transformers_shared": lambda: XTransformer(types=("a", "f", "f"), order=(0, 1, 0, 2), per_block=1),
}


class Pairs(Model):
    """Parts of blocks in lists, which do not run: no module's output is the stream."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleList([norm(), Attention(), norm(), FeedForward()]) for _ in range(LAYERS))
        self.last = norm()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.record(self.embedding(tokens), first=True)
        for before, attend, between, feed in self.layers:
            x = x + attend(before(x))
            x = self.record(x + feed(between(x)))
        return self.head(self.last(x))


# The stream of `Pairs`, which is not found by itself.
PAIRS = {f"resid.{i}": f"layers.{i}.0:input" for i in range(LAYERS)} | {f"resid.{LAYERS}": "last:input"}


def loss_of(model, tokens):
    """The loss of the next token, computed outside of the model."""
    logits = model(tokens)
    logits = logits[0] if isinstance(logits, tuple) else logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

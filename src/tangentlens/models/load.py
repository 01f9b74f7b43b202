"""Models from a hub or a directory, with their tokenizers. Remote code is run only if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tangentlens.errors import InputError
from tangentlens.models.device import AUTO, find_device
from tangentlens.models.foreign import explained
from tangentlens.models.loaded import LoadedModel
from tangentlens.models.loading import Loading, has_accelerate
from tangentlens.models.memory import check_fits, free_memory
from tangentlens.models.small import Kind
from tangentlens.models.source import Source
from tangentlens.models.tokenizer import check_vocabulary, load_tokenizer

# The default for finished models, of which nothing but activations is needed.
USUAL = Loading()
# Gradients in bf16 have three digits, and errors add up on their way back through the blocks.
FOR_GRADIENTS = Loading(dtype="float32")


class LoadError(InputError):
    """The error for a model that cannot be loaded.

    Attributes:
        reason: Why it cannot, in the words of what failed.
    """

    def __init__(self, spec: str, reason: str) -> None:
        super().__init__(
            "MODEL must be a directory or a hub id (id@revision) of a text model that transformers can load, with "
            f"tokenizer and safetensors weights, but {spec!r} is not: {reason}"
        )
        self.reason = reason


def load_model(spec: str, how: Loading = USUAL) -> LoadedModel:
    """Return a model without its head, in evaluation mode; of an encoder-decoder, the encoder alone.

    Args:
        spec: A directory, a hub id, or `id@revision`. Weights must be in safetensors files.
        how: Where to load it to, in which format, and with which tokenizer.
    """
    from transformers import AutoModel

    source = Source.of(spec)
    with _quiet(), explained(partial(LoadError, spec)):
        tokenizer, config = _tokenizer_and_config(source, how)
        model, missing = _weights(AutoModel, source, config, tokenizer, how)
        # No site depends on a pooler, and masked or causal checkpoints have none.
        _check_missing(source, sorted(key for key in missing if "pooler" not in key))
        both = getattr(config, "is_encoder_decoder", False)
        text = model.config.get_text_config()
        return LoadedModel(
            name=model_name(spec),
            revision=source.revision,
            kind="encoder" if both else kind_of(text),
            model=model.get_encoder() if both else model,
            tokenizer=tokenizer,
            width=text.hidden_size,
            longest=longest_input(model, tokenizer),
            not_loaded=missing,
            commit=source.commit,
        )


def load_language_model(spec: str, how: Loading = FOR_GRADIENTS, copies: int = 1) -> LoadedModel:
    """Return a model with its causal or masked language modelling head, in evaluation mode.

    If the checkpoint has no such head, `not_loaded` names its weights, which are random.

    Args:
        spec: A directory, a hub id, or `id@revision`. Weights must be in safetensors files.
        how: Where to load it to, in which format, and with which tokenizer.
        copies: How many models of this size must fit into memory.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    source = Source.of(spec)
    with _quiet(), explained(partial(LoadError, spec)):
        tokenizer, config = _tokenizer_and_config(source, how)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(
                f"{spec} must be an encoder or a decoder for its gradients to be looked at, but is both; "
                "`tangentlens profile` measures the encoder of such a model"
            )
        kind = kind_of(config.get_text_config())
        family = AutoModelForCausalLM if kind == "decoder" else AutoModelForMaskedLM
        model, missing = _weights(family, source, config, tokenizer, how, copies)
        body = f"{model.base_model_prefix}."
        _check_missing(source, sorted(key for key in missing if key.startswith(body) and "pooler" not in key))
        return LoadedModel(
            name=model_name(spec),
            revision=source.revision,
            kind=kind,
            model=model,
            tokenizer=tokenizer,
            width=model.config.get_text_config().hidden_size,
            longest=longest_input(model.base_model, tokenizer),
            not_loaded=sorted(key for key in missing if not key.startswith(body)),
            commit=source.commit,
        )


def check_model(spec: str, how: Loading = USUAL) -> None:
    """Raise if a model's tokenizer or configuration cannot be had: a look at little data, before anything is measured.

    Args:
        spec: A directory, a hub id, or `id@revision`.
        how: How it will be loaded.
    """
    with _quiet(), explained(partial(LoadError, spec)):
        _tokenizer_and_config(Source.of(spec), how)


def model_name(spec: str) -> str:
    """Return the name of a model: that of its directory, or its hub id as given."""
    return Path(spec).absolute().name if Path(spec).is_dir() else spec


def _tokenizer_and_config(source: Source, how: Loading) -> tuple[Any, Any]:
    """Return what is small, after a look at what the weights are."""
    from transformers import AutoConfig

    source.check_weights()
    config = AutoConfig.from_pretrained(source.place, **source.options(how.trust_remote_code))
    of_tokenizer = source if how.tokenizer is None else Source.of(how.tokenizer)
    return load_tokenizer(of_tokenizer, how.trust_remote_code), config


def _weights(
    family: Any, source: Source, config: Any, tokenizer: Any, how: Loading, copies: int = 1
) -> tuple[Any, set[str]]:
    """Return a model with its weights where they shall be, and the names of those that the checkpoint lacks.

    What can be known without weights is checked before any is read or downloaded.
    """
    # Where the configuration does not say its format, float32 is assumed: it is older than that setting.
    dtype = {} if how.format == AUTO else {"dtype": how.format}
    with torch.device("meta"):
        skeleton = family.from_config(config, trust_remote_code=how.trust_remote_code, **dtype)
    check_vocabulary(source, tokenizer, skeleton)
    placement = _placement(how)
    # A quantized checkpoint is smaller than the model that its configuration describes.
    if how.device_map is None and getattr(config, "quantization_config", None) is None:
        check_fits(source.place, skeleton, find_device(how.device), copies)
    model, info = family.from_pretrained(
        source.place,
        dtype=how.format,
        use_safetensors=True,
        output_loading_info=True,
        **placement,
        **source.options(how.trust_remote_code),
    )
    if how.device_map is None:
        model.to(find_device(how.device))
    return model.eval(), info["missing_keys"]


def _placement(how: Loading) -> dict[str, Any]:
    """Return what tells transformers to put each weight where it shall be as soon as it is read."""
    if how.device_map is not None:
        from accelerate.utils import get_max_memory

        memory, here = get_max_memory(), free_memory("cpu")
        # accelerate does not know the limit of a container.
        if "cpu" in memory and here is not None:
            memory["cpu"] = min(memory["cpu"], here)
        return {"device_map": how.device_map, "max_memory": memory}
    device = find_device(how.device)
    # Without accelerate, weights are moved one by one after they were mapped into memory.
    return {"device_map": {"": device}} if device.type != "cpu" and has_accelerate() else {}


def _check_missing(source: Source, missing: list[str]) -> None:
    """Raise an error if weights are missing from a checkpoint."""
    if missing:
        raise InputError(
            f"{source.place} must hold all weights of its model, but {len(missing)} are missing, such as {missing[0]}; "
            "they would be random"
        )


def longest_input(model: Any, tokenizer: Any) -> int:
    """Return the largest number of tokens that a model takes at once, special tokens included."""
    limits = [getattr(model.config.get_text_config(), "max_position_embeddings", None), tokenizer.model_max_length]
    longest = min((limit for limit in limits if limit is not None and limit > 0), default=2**31)
    # RoBERTa and related models number positions from after the padding index.
    positions = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    offset = getattr(positions, "padding_idx", None)
    if offset is not None and positions is not None:
        longest = min(longest, positions.num_embeddings - offset - 1)
    return int(longest)


def kind_of(config: Any) -> Kind:
    """Return the kind of a model by the class it was trained as; without that, by the use of its model family."""
    from transformers.models.auto import modeling_auto as auto

    names = getattr(config, "architectures", None) or []
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names) or getattr(config, "is_decoder", False):
        return "decoder"
    causal = config.model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return "decoder" if causal and config.model_type not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES else "encoder"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and messages of transformers, and restore its settings afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

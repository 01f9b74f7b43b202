"""Presets: sets of finished models to profile, as data. A new preset is an entry of `PRESETS`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PresetModel:
    """A finished model on the hub.

    Attributes:
        name: The name that the literature uses, and the model's name in the records.
        hub_id: Its id on the hub.
        revision: A commit, a branch, or `main` where no commit can be named.
        parameters: The number of parameters without the head.
        multiplied: How many entries of matrices multiply each token: those of all layers, a shared layer counted each
            time it runs. Embeddings are only looked up and are left out.
        width: The width of its residual stream.
        layers: The number of layers.
        gated: Whether access must be granted on the hub first.
    """

    name: str
    hub_id: str
    revision: str
    parameters: int
    multiplied: int
    width: int
    layers: int
    gated: bool = False

    @property
    def spec(self) -> str:
        """The model as `load_model` takes it."""
        return f"{self.hub_id}@{self.revision}"


@dataclass(frozen=True)
class Preset:
    """A set of models.

    Attributes:
        name: Its name on the command line.
        about: What its models are, in a sentence.
        models: The models.
    """

    name: str
    about: str
    models: tuple[PresetModel, ...]

    def up_to(self, billions: float | None) -> tuple[PresetModel, ...]:
        """Return the models with at most so many billions of parameters, the smallest first; None is no limit.

        >>> [model.name for model in PRESETS["shape-of-learning"].up_to(0.12)]
        ['ALBERT base', 'BERT base']
        """
        most = float("inf") if billions is None else billions * 1e9
        return tuple(sorted((one for one in self.models if one.parameters <= most), key=lambda one: one.parameters))


# Commits are those that public repositories name as the hub's `main`. OPT and GPT-J have no commit: their `main` holds
# pickles, and for `main` alone transformers looks for the hub's own conversion to safetensors. Pythia's last step is a
# branch. Parameters are those that the published configurations give; a test counts them.
# fmt: off
_PAPER = (
    PresetModel("BERT base", "google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594",
                109_482_240, 84_934_656, 768, 12),
    PresetModel("BERT large", "google-bert/bert-large-uncased", "6da4b6a26a1877e173fca3225479512db81a5e5b",
                335_141_888, 301_989_888, 1024, 24),
    PresetModel("RoBERTa base", "FacebookAI/roberta-base", "e2da8e2f811d1448a5b465c236feacd80ffbac7b",
                124_645_632, 84_934_656, 768, 12),
    PresetModel("RoBERTa large", "FacebookAI/roberta-large", "722cf37b1afa9454edce342e7895e588b6ff1d59",
                355_359_744, 301_989_888, 1024, 24),
    PresetModel("ALBERT base", "albert/albert-base-v2", "8e2f239c5f8a2c0f253781ca60135db913e5c80c",
                11_683_584, 84_934_656, 768, 12),
    PresetModel("ALBERT xxlarge", "albert/albert-xxlarge-v2", "main", 222_595_584, 2_415_919_104, 4096, 12),
    PresetModel("OPT 125M", "facebook/opt-125m", "main", 125_239_296, 84_934_656, 768, 12),
    PresetModel("OPT 1.3B", "facebook/opt-1.3b", "main", 1_315_758_080, 1_207_959_552, 2048, 24),
    PresetModel("OPT 6.7B", "facebook/opt-6.7b", "main", 6_658_473_984, 6_442_450_944, 4096, 32),
    PresetModel("Llama-2 7B", "meta-llama/Llama-2-7b-hf", "01c7f73d771dfac7d292323805ebc428287df4f9",
                6_607_343_616, 6_476_005_376, 4096, 32, gated=True),
    PresetModel("GPT-2", "openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e",
                124_439_808, 84_934_656, 768, 12),
    PresetModel("GPT-2 XL", "openai-community/gpt2-xl", "15ea56dee5df4983c59b2538573817e1667135e2",
                1_557_611_200, 1_474_560_000, 1600, 48),
    PresetModel("GPT-J 6B", "EleutherAI/gpt-j-6b", "main", 5_844_393_984, 5_637_144_576, 4096, 28),
    PresetModel("Falcon 7B", "tiiuae/falcon-7b", "ec89142b67d748a1865ea4451372db8313ada0d8",
                6_921_720_704, 6_625_951_744, 4544, 32),
    PresetModel("Pythia 160M", "EleutherAI/pythia-160m", "step143000", 123_689_472, 84_934_656, 768, 12),
    PresetModel("Pythia 410M", "EleutherAI/pythia-410m", "step143000", 353_822_720, 301_989_888, 1024, 24),
    PresetModel("Pythia 1.4B", "EleutherAI/pythia-1.4b", "step143000", 1_311_625_216, 1_207_959_552, 2048, 24),
    PresetModel("Pythia 6.9B", "EleutherAI/pythia-6.9b", "step143000", 6_650_732_544, 6_442_450_944, 4096, 32),
    PresetModel("EuroBERT 210M", "EuroBERT/EuroBERT-210m", "39b51e15dd1f1a06f58b5cbf6a8a188cec60bd0e",
                211_766_016, 113_246_208, 768, 12),
    PresetModel("EuroBERT 610M", "EuroBERT/EuroBERT-610m", "d9af784ed20db6c2096e335ec6a67dd4a219924c",
                607_874_688, 460_062_720, 1152, 26),
    PresetModel("SmolLM2 135M", "HuggingFaceTB/SmolLM2-135M", "93efa2f097d58c2a74874c7e644dbc9b0cee75a2",
                134_515_008, 106_168_320, 576, 30),
    PresetModel("SmolLM2 360M", "HuggingFaceTB/SmolLM2-360M", "f8027fd0eaeea54caa13c31d31b9fdc459c38b49",
                361_821_120, 314_572_800, 960, 32),
    PresetModel("SmolLM2 1.7B", "HuggingFaceTB/SmolLM2-1.7B", "effd688a12921b4cc83e3312b6feb579f70f9c71",
                1_711_376_384, 1_610_612_736, 2048, 24),
)
# fmt: on

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "shape-of-learning",
            "The families of arXiv 2311.05928, with Pythia, EuroBERT and SmolLM2; the sizes are chosen here.",
            _PAPER,
        ),
    )
}

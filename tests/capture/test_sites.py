import pytest
from torch import nn

from tangentlens import InputError
from tangentlens.capture.sites import find_sites
from tiny import tiny_model


def names(model, wanted):
    return [site.name for site in find_sites(model, wanted)]


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_portable_names_come_in_the_order_of_the_network(kind):
    model = tiny_model(kind)
    assert names(model, ["final", "resid", "embed"]) == ["embed", "resid.0", "resid.1", "resid.2", "final"]
    assert [site.depth for site in find_sites(model, "resid")] == [0.0, 0.5, 1.0]


def test_more_than_ten_blocks_are_sorted_by_number():
    model = nn.ModuleList(nn.Linear(2, 2) for _ in range(12))
    assert names(model, "resid")[9:] == ["resid.9", "resid.10", "resid.11", "resid.12"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(4))


@pytest.mark.parametrize("kind", [nn.ModuleList, lambda blocks: nn.Sequential(*blocks)])
def test_blocks_are_the_outer_list_not_the_heads_inside(kind):
    model = nn.ModuleDict({"blocks": kind([Block() for _ in range(3)])})
    assert [type(site.module) for site in find_sites(model, "resid")] == [Block] * 4


def test_module_paths_and_globs_are_sites_too():
    model = tiny_model()
    assert names(model, "model.layers.*.mlp") == ["model.layers.0.mlp", "model.layers.1.mlp"]
    assert names(model, ["resid.1", "resid.*"]) == ["resid.0", "resid.1", "resid.2"]


def test_a_number_after_a_name_takes_so_many_sites_evenly_spread():
    model = nn.ModuleList(nn.Linear(2, 2) for _ in range(30))
    assert names(model, "resid:7") == [f"resid.{i}" for i in (0, 5, 10, 15, 20, 25, 30)]
    assert names(model, "resid:31") == names(model, "resid:99") == names(model, "resid")
    assert names(model, ["resid.3", "resid.*:2"]) == ["resid.0", "resid.3", "resid.30"]
    for wrong in ("resid:1", "resid:", "resid:x"):
        with pytest.raises(InputError, match=f"at least 2, but '{wrong}' came; write resid:8"):
            find_sites(model, wrong)


def test_a_portable_name_means_the_same_in_every_model():
    model = nn.ModuleDict(
        {"blocks": nn.ModuleList([nn.Linear(4, 4)]), "norm": nn.LayerNorm(4), "final": nn.Linear(4, 9)}
    )
    assert isinstance(find_sites(model, "final")[0].module, nn.LayerNorm)


def test_of_two_norms_the_final_one_comes_after_the_blocks():
    model = nn.ModuleDict(
        {"norm_in": nn.LayerNorm(4), "blocks": nn.ModuleList([nn.Linear(4, 4)] * 2), "norm_out": nn.LayerNorm(4)}
    )
    assert find_sites(model, "final")[0].module is model["norm_out"]


def test_an_unknown_site_names_the_nearest():
    with pytest.raises(InputError, match=r"'resid.9' does not; the nearest are resid.\d"):
        find_sites(tiny_model(), "resid.9")
    with pytest.raises(InputError, match=r"this model has embed, resid\.0 to resid\.2, attn\.0 to attn\.1, mlp"):
        find_sites(tiny_model(), "zzzz")
    with pytest.raises(InputError, match="no portable ones"):
        find_sites(nn.Linear(2, 2), "resid")


def test_a_family_is_of_portable_names_alone():
    """Parts of an MLP that is a `Sequential` have paths like those of the family."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    assert names(nn.ModuleDict({"blocks": nn.ModuleList([Inner(), Inner()])}), "mlp") == ["mlp.0", "mlp.1"]


def test_blocks_may_be_of_several_classes():
    class Other(Block):
        pass

    model = nn.ModuleDict({"blocks": nn.ModuleList([Block(), Other(), Block()])})
    assert [type(site.module) for site in find_sites(model, "resid")] == [Block, Block, Other, Block]


def test_a_norm_of_the_embedding_is_not_the_final_one():
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(4, 4)] * 2), "layernorm_embedding": nn.LayerNorm(4)})
    assert "final" not in names(model, "*")

from cells import cell, profile_cells, shares
from tangentlens.report.contents import tabulate
from tangentlens.runs.records import Record, as_frame
from tangentlens.studies import SECTIONS
from tangentlens.studies.visibility.plan import CORRELATION, RATIO


def only_table(*records):
    (table,) = tabulate(SECTIONS, as_frame("r", records))
    return table.frame


def test_the_table_sets_the_proxy_beside_its_controls():
    table = only_table(*shares(3, 0.2, 0.1, 0.0), *shares(8, 0.3, 0.7, 0.5))
    assert table.rows() == [
        ("r", "m", 8, "energy", "semi_nmf", "0.300 [0.250, 0.350]", ""),
        ("r", "m", 8, "energy", "random", "0.125", ""),
    ]


def test_the_table_has_the_proxys_ratio_to_each_control():
    pca = cell("share", 0.3, 0.2, 0.4, variant="pca", order=1.0, step=8)
    table = only_table(*shares(8, 0.3, 0.7, 0.5), pca)
    assert table.filter(subspace="pca")["proxy / it"].to_list() == ["1.00 [0.905, 1.11]"]


def test_a_profile_is_a_table_of_means_and_deviations_in_order_of_depth():
    table = only_table(*profile_cells("anisotropy", [0.2, 0.5, 0.1]), *profile_cells("rankme", [1, 2]))
    assert table.columns == ["run", "site", "anisotropy ± sd"]
    assert table["anisotropy ± sd"].to_list() == ["0.2 ±0.005", "0.5 ±0.005", "0.1 ±0.005"]


def test_visibility_is_a_table_of_sites_with_corrected_p_values():
    records = []
    for place, p_value in enumerate((0.03, 0.01)):
        about = {"site": f"resid.{place}", "depth": float(place), "quantity": "activation"}
        records += [
            cell(RATIO, 0.9, 0.8, 1.0, variant="corpus", alpha=1.0, **about),
            cell(f"p_value/{RATIO}", p_value, variant="corpus", alpha=1.0, **about),
            cell(CORRELATION, -0.1, -0.2, 0.0, variant="corpus", **about),
            cell("intrinsic_dimension", 12.3, variant="of patches", **about),
            cell("resolved", float(place), **about),
        ]
    assert only_table(*records[::-1]).rows() == [
        ("r", "resid.0", "0.900 [0.800, 1.00]", "0.03", "-0.100 [-0.200, 0.00]", "4 of 12", "do not"),
        ("r", "resid.1", "0.900 [0.800, 1.00]", "0.02", "-0.100 [-0.200, 0.00]", "4 of 12", "stand out"),
    ]


def test_records_without_shares_give_empty_tables():
    for records in ([Record(model="m", metric="loss", value=1.0)], []):
        assert tabulate(SECTIONS, as_frame("r", records)) == []

"""Which word a study's numbers get beside the paper's, and that a wrong shape gets no agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sweep_fakes import changed

from indelible.checked import check
from indelible.errors import ConfigError
from indelible.sweep.agreement import agreement, paper_tells
from indelible.sweep.config import SweepConfig
from indelible.sweep.contrasts import row_key
from indelible.sweep.places import Places
from indelible.sweep.shown import PaperTable
from indelible.sweep.tally import Tally

Values = dict[str, Sequence[float]]


def entries(values: Values, *, seeds: Sequence[int] = (0,), half: float = 0.02, pulls: Any = None, **given: Any) -> Any:
    """What agreement says where attacks have these values over the axis `k` (1, 2, ...), on every seed alike, with
    intervals of +-`half`; a value of a seed of its own is a tuple."""
    labels = range(1, 1 + len(next(iter(values.values()))))
    study = changed(axes={"k": {"path": "audit.settings.icp-sp.k", "values": list(labels)}}, seeds=list(seeds), **given)
    rows = [
        {"axes": {"k": str(k)}, "seed": seed, "attack": attack, "model": "target", "metric": "auc", "value": v,
         "low": v - half, "high": v + half, "level": 0.95}
        for attack, column in values.items() for k, of in zip(labels, column, strict=True) for seed in seeds
        for v in [of[seed] if isinstance(of, tuple) else of]
    ]  # fmt: skip
    found = {} if pulls is None else {row_key(row): pulls(row) for row in rows}
    return agreement(Places(check(SweepConfig, study), rows), found)


def word(shape: str, values: Sequence[Any], *, seeds: Sequence[int] = (0,), half: float = 0.02, **more: Any) -> str:
    """The word for one line."""
    expect = {"where": "Fig. X", "shape": shape, "x": "k", "lines": ["icp-sp"], **more}
    (one,) = entries({"icp-sp": values}, seeds=seeds, half=half, expect=[expect])
    return str(one["word"])


# ------------------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("same", "against", "unclear", "expected"),
    [
        (0, 0, 0, "cannot tell"), (1, 0, 65, "cannot tell"), (0, 0, 9, "cannot tell"), (0, 4, 9, "cannot tell"),
        (5, 0, 4, "agrees"), (40, 2, 10, "agrees"), (40, 3, 10, "agrees in part"), (3, 2, 0, "agrees in part"),
        (2, 2, 0, "disagrees"), (0, 9, 3, "disagrees"),
    ],
)  # fmt: skip
def test_the_word_needs_most_to_be_clear_and_few_against(same: int, against: int, unclear: int, expected: str) -> None:
    assert Tally(same, against, unclear).word == expected


# ----------------------------------------------------------------------------------------------------------- tables


def table(values: dict[str, float], **more: Any) -> list[dict[str, Any]]:
    return [{"where": "Table X", "values": values, "only": {"k": ["1"]}, **more}]


def test_pairs_count_that_the_paper_tells_apart_and_we_do() -> None:
    ours = {"loss": [0.6], "icp-sp": [0.9], "min-k": [0.61]}
    paper = {"loss": 0.6, "icp-sp": 0.9, "min-k": 0.605}
    (one,) = entries(ours, paper_values=table(paper))
    assert (one["word"], one["same"], one["against"], one["unclear"]) == ("agrees", 2, 0, 0)
    assert "1 more that the paper's own sample leaves open" in one["line"]
    assert "highest: icp-sp in both" in one["line"]
    (one,) = entries({**ours, "loss": [0.95]}, paper_values=table(paper))
    assert (one["word"], one["same"], one["against"]) == ("disagrees", 1, 1)
    (one,) = entries(ours, half=0.4, paper_values=table(paper))
    assert (one["word"], one["unclear"]) == ("cannot tell", 2)
    (one,) = entries({"loss": [0.6], "icp-sp": [0.9]}, paper_values=table({"icp-sp": 0.9}))
    assert (one["word"], one["line"]) == ("cannot tell", "Table X, auc: 0.900 [0.880, 0.920] here, 0.900 there")


def test_the_papers_noise_is_no_order() -> None:
    """Table V and Table VIII of the paper: differences of 0.0003 to 0.014 on 500 + 500 records."""
    ours = {"loss": [0.5, 0.9], "icp-sp": [0.9, 0.5]}
    values = {"loss": {"1": 0.5080, "2": 0.5083}, "icp-sp": {"1": 0.5235, "2": 0.5310}}
    (one,) = entries(ours, paper_values=[{"where": "Table V", "columns": "k", "values": values}])
    assert (one["word"], one["same"] + one["against"] + one["unclear"]) == ("cannot tell", 0)
    plan = PaperTable(where="", values={})
    assert not paper_tells(plan, 0.942, 0.948, 1.96, same_records=True)
    assert paper_tells(plan, 0.942, 0.827, 1.96, same_records=True)
    assert paper_tells(plan, 0.800, 0.832, 1.96, same_records=True)
    assert not paper_tells(plan, 0.800, 0.832, 1.96, same_records=False)
    assert paper_tells(plan.model_copy(update={"n": 5000}), 0.800, 0.832, 1.96, same_records=False)
    low = plan.model_copy(update={"metric": "tpr@0.01"})
    assert not paper_tells(low, 0.084, 0.172, 1.96, same_records=False)  # five non-members set the threshold
    assert paper_tells(low, 0.084, 0.518, 1.96, same_records=False)
    drop = plan.model_copy(update={"metric": "drop_members"})
    assert not paper_tells(drop, 0.1, 0.9, 1.96, same_records=False)
    assert paper_tells(drop.model_copy(update={"error": 0.05}), 0.1, 0.9, 1.96, same_records=False)


def test_a_pair_of_one_audit_is_compared_on_its_records() -> None:
    ours, paper = {"loss": [0.80], "icp-sp": [0.84]}, table({"loss": 0.7, "icp-sp": 0.9})
    (one,) = entries(ours, half=0.06, paper_values=paper)
    assert one["word"] == "cannot tell"

    def together(row: dict[str, Any]) -> dict[str, float]:
        return {"a": 0.03, "b": 0.002 if row["attack"] == "loss" else 0.004}

    (one,) = entries(ours, half=0.06, paper_values=paper, pulls=together)
    assert one["word"] == "agrees"


def test_rank_correlation_of_a_column_has_an_interval() -> None:
    names = ["loss", "icp-sp", "min-k", "zlib", "recall"]
    ours = {name: [0.5 + 0.08 * i] for i, name in enumerate(names)}
    (one,) = entries(ours, paper_values=table({name: 0.5 + 0.09 * i for i, name in enumerate(names)}))
    assert "Spearman 1.00 over 5 rows" in one["line"]
    (one,) = entries(ours, paper_values=table({name: 0.9 - 0.09 * i for i, name in enumerate(names)}))
    assert "Spearman -1.00" in one["line"]
    assert (one["word"], one["same"]) == ("disagrees", 0)
    shuffled = {"loss": 0.7, "icp-sp": 0.5, "min-k": 0.9, "zlib": 0.6, "recall": 0.8}
    (one,) = entries(ours, paper_values=table(shuffled))
    assert "Spearman 0.30 [-0.80, 0.94] over 5 rows" in one["line"]


# ----------------------------------------------------------------------------------------------------------- shapes

MOUNTAIN = [0.55, 0.60, 0.66, 0.73, 0.80, 0.87, 0.90, 0.83, 0.74, 0.64]
RISING = [0.55, 0.57, 0.61, 0.60, 0.66, 0.70, 0.72, 0.78, 0.81, 0.85]
LATE = [0.55, 0.56, 0.60, 0.60, 0.59, 0.60, 0.58, 0.60, 0.95, 0.70]
FLAT = [0.60, 0.61, 0.59, 0.60, 0.62, 0.60, 0.59, 0.61, 0.60, 0.60]


def test_no_curve_both_rises_and_peaks() -> None:
    between = {"between": [3, 8]}
    assert word("rises", RISING) == "agrees"
    assert word("peak", RISING, **between) == "disagrees"
    assert word("peak", MOUNTAIN, half=0.005, between=[4, 8]) == "agrees"
    assert word("rises", MOUNTAIN) == "agrees in part"
    assert word("falls", MOUNTAIN) == "disagrees"
    assert word("peak", LATE, **between) == "disagrees"  # the highest is at 9
    assert word("rises", RISING[::-1]) == "disagrees"
    assert word("falls", RISING[::-1]) == "agrees"
    early = [0.60, 0.80, 0.85, 0.80, 0.75, 0.72, 0.70, 0.66, 0.62, 0.58]
    assert word("rises", early) == "disagrees"
    symmetric = [0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.8, 0.7, 0.6, 0.5]
    assert word("rises", symmetric) == "disagrees"


@pytest.mark.parametrize("shape", ["rises", "falls", "peak"])
def test_a_flat_or_noisy_curve_tells_nothing(shape: str) -> None:
    more = {"between": [3, 8]} if shape == "peak" else {}
    assert word(shape, FLAT, **more) == "cannot tell"
    assert (
        word(shape, {"rises": RISING, "falls": RISING[::-1], "peak": MOUNTAIN}[shape], half=0.6, **more)
        == "cannot tell"
    )


def test_a_peak_beats_every_label_outside() -> None:
    inner = [0.60, 0.70, 0.86, 0.90, 0.86, 0.70, 0.60]
    assert word("peak", inner, between=[3, 5]) == "agrees"
    plateau = [0.60, 0.899, 0.90, 0.90, 0.90, 0.60, 0.55]
    assert word("peak", plateau, between=[3, 5]) == "agrees in part"  # 2 is as high
    one_sided = [0.90, 0.90, 0.90, 0.90, 0.90, 0.60, 0.55]
    assert word("peak", one_sided, between=[3, 5]) == "cannot tell"  # nothing on the left is lower
    assert word("peak", inner, between=[1, 7]) == "cannot tell"  # nothing lies outside
    assert word("peak", [0.6, 0.9], between=[5, 6]) == "cannot tell"  # nothing lies inside


def test_the_place_of_a_peak_is_chosen_on_other_seeds() -> None:
    # Each seed has a spike of its own inside; none of them is there on the others, and the rest is level.
    spikes = [(0.6, 0.6, 0.6), (0.9, 0.6, 0.6), (0.6, 0.9, 0.6), (0.6, 0.6, 0.9), (0.6, 0.6, 0.6)]
    assert word("peak", spikes, seeds=[0, 1, 2], between=[2, 4]) == "cannot tell"
    steady = [(0.6, 0.6, 0.6), (0.6, 0.6, 0.6), (0.9, 0.88, 0.92), (0.6, 0.6, 0.6), (0.6, 0.6, 0.6)]
    assert word("peak", steady, seeds=[0, 1, 2], between=[2, 4]) == "agrees"


def test_more_seeds_make_a_shape_clearer() -> None:
    weak = [0.60, 0.63, 0.66]
    assert word("rises", weak, half=0.07) == "cannot tell"
    assert word("rises", weak, half=0.07, seeds=range(6)) == "agrees"


def test_above_goes_by_pairs() -> None:
    expect = [{"where": "Fig. X", "shape": "above", "x": "k", "lines": ["icp-sp"], "than": ["loss"]}]
    (one,) = entries({"icp-sp": [0.7, 0.9, 0.8], "loss": [0.6, 0.6, 0.6]}, expect=expect)
    assert (one["word"], one["same"]) == ("agrees", 3)
    (one,) = entries({"icp-sp": [0.5, 0.9, 0.8], "loss": [0.6, 0.6, 0.6]}, expect=expect)
    assert (one["word"], one["same"], one["against"]) == ("agrees in part", 2, 1)
    (one,) = entries({"icp-sp": [0.5, 0.5, 0.8], "loss": [0.6, 0.6, 0.6]}, expect=expect)
    assert one["word"] == "disagrees"


def test_to_stay_is_to_be_shown_within_the_margin() -> None:
    assert word("stays", [0.80, 0.79, 0.77], margin=0.08) == "agrees"
    assert word("stays", [0.80, 0.79, 0.77], margin=0.08, half=0.1) == "cannot tell"  # no difference is not equality
    assert word("stays", [0.80, 0.79, 0.60], margin=0.08) == "disagrees"
    assert word("stays", [0.80, 0.79, 0.95], margin=0.08) == "disagrees"
    assert word("stays", [0.80, 0.79, 0.73], margin=0.08) == "cannot tell"


def test_to_flatten_is_to_change_in_the_first_step() -> None:
    assert word("flattens", [2.0, 1.0, 0.98, 0.96, 0.95]) == "agrees"
    assert word("flattens", [0.5, 1.5, 1.52, 1.54, 1.55]) == "agrees"  # upwards too
    assert word("flattens", [2.0, 1.75, 1.5, 1.25, 1.0]) == "disagrees"  # a straight line falls too
    assert word("flattens", [2.0, 1.3, 1.0, 0.98, 0.97]) == "agrees in part"  # the second step is large
    assert word("flattens", [2.0, 1.0, 0.98, 0.96, 0.95], half=2.0) == "cannot tell"
    assert word("flattens", [2.0, 1.99, 2.0]) == "cannot tell"


def test_a_missing_number_leaves_the_others() -> None:
    assert word("rises", [0.6]) == "cannot tell"
    expect = [{"where": "Fig. X", "shape": "above", "x": "k", "lines": ["icp-sp"], "than": ["zlib"]}]
    (one,) = entries({"icp-sp": [0.7, 0.9]}, expect=expect)
    assert (one["word"], one["line"].endswith("no two numbers to compare")) == ("cannot tell", True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": "peak"}, "shape peak needs between"),
        ({"shape": "stays"}, "shape stays needs margin"),
        ({"shape": "above"}, "shape above needs than"),
        ({"shape": "peak", "between": [1, 2], "x": "tuning"}, "a peak over 'tuning' needs labels that are numbers"),
    ],
)
def test_a_shape_that_cannot_be_tested_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(SweepConfig, changed(expect=[{"where": "", "x": "rate", "lines": ["loss"], **given}]))


def test_the_papers_number_and_the_bases_are_found_by_place() -> None:
    study = changed(axes={"k": {"path": "audit.settings.icp-sp.k", "values": [1, 5]}}, seeds=[0],
                    paper_values=[{"where": "", "values": {"loss": 0.6}, "only": {"k": ["5"]}}])  # fmt: skip
    rows = [
        {"axes": {"k": "5"}, "seed": 0, "attack": "loss", "model": m, "metric": "loss_nonmembers", "value": v}
        for m, v in (("target", 2.0), ("base", 3.0))
    ]
    places = Places(check(SweepConfig, study), rows)
    place = {"attack": "loss", "k": "5"}
    assert (places.paper(place, "auc"), places.paper({**place, "k": "1"}, "auc")) == (0.6, None)
    assert places.row(place, "loss_nonmembers", 0)["value"] == 2.0
    assert places.row(place, "base_loss_nonmembers", 0)["value"] == 3.0
    assert places.row(place, "base_auc", 0) is None

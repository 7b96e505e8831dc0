"""Settings and plan of a tabular run: what is refused, what is left out and said, which rows each group gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from indelible.errors import ConfigError, UserError
from indelible.stats.verdict import Verdict
from indelible.tabular.config import DefenceOptions, TabularRunConfig, read_run_config
from indelible.tabular.defences import Guard, honest_refusals
from indelible.tabular.gates import gates_of, tripped
from indelible.tabular.plan import EARLY, defence_blocks, defences_of, plan_run, query_counts
from indelible.tabular.tables import Prepared, finished, largest, sizes


def config(**more: Any) -> TabularRunConfig:
    return TabularRunConfig(tables=("t",), **more)


def prepared(n: int, k: int = 2, label: str = "t") -> Prepared:
    from indelible.data.tables import Column, Table

    features = pd.DataFrame({"x": np.arange(n, dtype=float), "z": np.arange(n, dtype=float) ** 2})
    columns = tuple(Column(name, "number", n, 0) for name in features)
    ids = tuple(f"r{i:04d}" for i in range(n))
    classes = tuple(map(str, range(k)))
    table = Table(label, features, np.arange(n) % k, "classification", "y", classes, columns, ids, None, ())
    return finished(table, label, 10, 10)


def test_defaults_are_the_papers_learning_rates_and_the_last_epoch_is_probed() -> None:
    made = config()
    assert made.learning_rates == (0.1, 0.01, 0.001, 0.0001)
    assert made.seeds == (0, 1, 2)
    assert made.probed_at == (15, 60, 150)
    assert config(epochs=300, probe_epochs=(7,)).probed_at == (7, 300)
    assert config(epochs=1).probed_at == (1,)
    assert made.defences is None
    assert config(defences=True).defences == DefenceOptions()
    assert config(defences={"epsilons": [1]}).defences.epsilons == (1.0,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rate": [1]}, "unknown setting 'learning_rate'. Did you mean 'learning_rates'?"),
        ({"tables": [{"source": "a", "targt": "y"}]}, "Did you mean 'target'?"),
        ({"tables": ["a.csv", "b/a.csv"]}, "two tables are called 'a'"),
        ({"tables": []}, "no table: give --table"),
        ({"seeds": [0, 0]}, "a seed stands there twice"),
        ({"seeds": [-1]}, "expected at least 0"),
        ({"queries": []}, "at least one"),
        ({"epochs": 501}, "expected at most 500"),
        ({"epochs": 5, "probe_epochs": [6]}, "probe epoch 6 lies behind the last of 5 epochs"),
        ({"profiles": ["several"]}, "give more than one"),
        ({"learning_rates": [0]}, "expected more than 0"),
        ({"learning_rates": [0.001, 0.00100000001]}, "0.001 and 0.00100000001 are both called 0.001"),
        ({"defences": {"epsilons": [8, 8]}}, "epsilons"),
        ({"defences": {"low_learning_rate": 0.1}}, "low_learning_rate 0.1 is not below 0.01"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"tables": ["t"], **given}))
    with pytest.raises(ConfigError) as caught:
        read_run_config(str(file), {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_is_named_before_the_lack_of_tables(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("table: [wine]\n")
    with pytest.raises(ConfigError, match=r"unknown setting 'table'\. Did you mean 'tables'"):
        read_run_config(str(file), {})


def test_flags_go_over_a_file_and_data_is_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("tables: [data/u/t.csv, wine]\nepochs: 9\nlearning_rates: [1e-3]\n")
    made, given = read_run_config(str(file), {"epochs": 7}, str(tmp_path))
    assert [table.source for table in made.tables] == [str(tmp_path / "u" / "t.csv"), "wine"]
    assert made.learning_rates == (0.001,)  # YAML reads 1e-3 as a text
    assert made.epochs == given["epochs"] == 7
    with pytest.raises(ConfigError, match="no such folder"):
        read_run_config(str(file), {}, str(tmp_path / "no"))


def test_the_shipped_studies_are_read() -> None:
    files = sorted((Path(__file__).parents[2] / "experiments" / "tabular").glob("*.yaml"))
    assert len(files) >= 10
    for file in files:
        made, _ = read_run_config(str(file), {})
        assert made.seeds == (0, 1, 2)
        assert made.epochs == 500
    grid, _ = read_run_config(str(next(file for file in files if file.stem == "grid")), {})
    assert {"breast_cancer", "wine", "digits", "spotify", "wine_pl", "coffee", "movies"} <= {
        t.label for t in grid.tables
    }


def test_numbers_behind_classes_are_alike_on_both_sides_too() -> None:
    from indelible.data.table_encoding import fit_encoding
    from indelible.data.table_matching import kolmogorov_smirnov
    from indelible.data.tables import Column, Table
    from indelible.tabular.worlds import make_world

    rng = np.random.default_rng(1)
    n, y = 400, rng.normal(size=400)
    columns = (Column("x", "number", n, 0),)
    ids = tuple(map(str, range(n)))
    table = Table("t", pd.DataFrame({"x": rng.normal(size=n)}), y, "regression", "y", (), columns, ids, None, ())
    read = finished(table, "t", 5, 10)
    assert read.n_classes == 5
    model: Any = SimpleNamespace(encoder=fit_encoding)
    world = make_world(read, model, config(max_distance=0.07), n_members=50, seed=2, randomise=True)
    split = world.split
    assert split.distance_name == "KS"
    assert read.numbers is not None
    assert split.distance == kolmogorov_smirnov(read.numbers[split.members], read.numbers[split.nonmembers])
    assert split.distance < 0.07
    assert split.matched_exactly
    again = make_world(read, model, config(max_distance=0.07), n_members=50, seed=2, randomise=True)
    assert again.facts() == world.facts()
    far = make_world(read, model, config(max_distance=0.004, exact=True), n_members=10, seed=2, randomise=True).split
    assert far.distance >= 0.004
    assert "at best in 50 draws" in far.notes[-1]


def test_sizes_leave_room_for_every_group() -> None:
    for n, k, q in ((569, 2, 50), (178, 3, 50), (1797, 10, 512), (442, 10, 50)):
        table = prepared(n, k)
        got = sizes(table, q, config())
        assert not isinstance(got, str)
        assert got.members == q
        assert got.context % k == 0
        assert got.context <= 64
        assert got.nonmembers >= 50
        assert got.members + got.nonmembers + got.context + got.reserve <= n
        assert got.reserve >= (n - got.context - q) // 5 - 1 or got.reserve == 256
    assert "90 rows are too few for 50 members" in str(sizes(prepared(90), 50, config()))


def test_a_count_that_does_not_fit_is_left_out_with_the_reason() -> None:
    counts, left = query_counts(prepared(569), config())
    assert counts[0] == 50
    assert 100 <= counts[1] < 512
    assert left[0]["what"] == "t: 512 query rows"
    assert f"{counts[1]}, the largest that fits, stands in for it" in left[0]["reason"]
    counts, left = query_counts(prepared(569), config(queries=(50, 512)))
    assert counts == (50,)
    assert "stands in" not in left[0]["reason"]
    assert query_counts(prepared(1200), config()) == ((50, 512), [])
    assert query_counts(prepared(178, 3), config())[0] == (50,)


def test_the_largest_count_is_the_largest() -> None:
    table = prepared(569)
    n = largest(table, config(), 512, 100)
    assert n is not None
    assert not isinstance(sizes(table, n, config(), 100), str)
    assert isinstance(sizes(table, n + 10, config(), 100), str)
    assert largest(prepared(60), config(), 512, 100) is None


def test_the_plan_is_seeds_times_tables_times_counts() -> None:
    tables = {"one": prepared(300, label="one"), "two": prepared(180, 3, label="two")}
    made = TabularRunConfig(
        tables=("one", "two"), queries=(20, 100), profiles=("controlled", "several"), seeds=(4, 5), epochs=20
    )
    plan = plan_run(made, tables)
    assert plan.counts == {"one": (20, 100), "two": (20,)}
    own = [(b.tables, b.profile, b.n_queries) for b in plan.blocks if b.seed == 4]
    assert own == [
        (("one",), "controlled", 20), (("one",), "controlled", 100), (("two",), "controlled", 20),
        (("one", "two"), "several", 20),
    ]  # fmt: skip
    block = plan.blocks[0]
    assert block.names == ("0.1", "0.01", "0.001", "0.0001")
    assert [one.learning_rate for one in block.settings] == [0.1, 0.01, 0.001, 0.0001]
    assert {one.seed for one in block.settings} == {4}
    assert {one.profile for one in block.settings} == {"controlled"}
    assert block.n_epochs == 80
    ids = [b.config_id(t, n) for b in plan.blocks for t in b.tables for n in b.names]
    assert len(set(ids)) == len(ids)
    reasons = {one["what"]: one["reason"] for one in plan.not_run}
    assert "two: 100 query rows" in reasons
    assert "2 seed(s)" in reasons["replicates"]
    with pytest.raises(UserError, match="give smaller --queries"):
        plan_run(config(queries=(500,)), {"t": prepared(100)})


def test_defences_differ_from_the_undefended_training_in_one_thing() -> None:
    options = DefenceOptions(epsilons=(8, 1))
    made = config(defences=options, epochs=100)
    found, left = defences_of(made, options, prepared(800), (50, 300), 3)
    assert left == []
    names = [one.name for one in found]
    assert names == ["none", "more-queries", "low-learning-rate", "resampled", EARLY, "dp-8", "dp-1"]
    base = found[0].setting
    assert base.probe_epochs == (100,)
    changed = {"more-queries": {"n_queries"}, "low-learning-rate": {"learning_rate"}, "resampled": {"profile"},
               EARLY: {"probe_epochs", "patience"}, "dp-8": {"epsilon"}, "dp-1": {"epsilon"}}  # fmt: skip
    for one in found[1:]:
        differing = {name for name in vars(base) if getattr(one.setting, name) != getattr(base, name)}
        assert differing == changed[one.name], one.name
    blocks = list(defence_blocks("t", found, 3, randomise=True, stopped_at=35))
    assert [(b.n_queries, b.names) for b in blocks] == [
        (50, ("none", "low-learning-rate", "resampled", EARLY, "dp-8", "dp-1")), (300, ("more-queries",)),
    ]  # fmt: skip
    early = blocks[0].settings[3]
    assert early.probe_epochs == (35,)  # the epoch that true labels stopped at
    assert early.patience is None
    alone, _ = defences_of(made, options, prepared(2200), (50,), 3)  # no larger count is in the grid
    assert (alone[1].name, alone[1].setting.n_queries) == ("more-queries", 510), "no more than in the paper"
    _, left = defences_of(made, options, prepared(150), (50,), 3)
    assert "more query rows as a defence" in left[0]["what"]


def test_the_guard_answers_honest_contexts_alone() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(64, 5)).astype(np.float32)
    guard, labels = Guard(), np.arange(20) % 2
    honest = rng.normal(size=(20, 5)).astype(np.float32)
    assert guard.reason(honest, labels, reference) is None
    assert guard.reason(honest[:4], labels[:4], reference) == "fewer than 8 rows"
    assert guard.reason(honest[:9], np.arange(9) % 3, reference) == "fewer than 12 rows"
    assert guard.reason(np.repeat(honest[:1], 20, 0), labels, reference) == "most rows repeat another"
    doubled = np.repeat(honest[:12], 2, 0)  # every row under both labels
    both = np.arange(24) % 2
    assert guard.reason(doubled, both, reference) == "the same row stands there under several labels"
    assert guard.reason(doubled, np.repeat(np.arange(12) % 2, 2), reference) is None
    nudged = honest[:1] + 0.01 * honest
    assert guard.reason(nudged, labels, reference) == "its rows hardly differ"
    assert guard.reason(0 * honest + np.arange(20, dtype=np.float32)[:, None], labels, 0 * reference) is None


def test_honest_refusals_need_a_reserve() -> None:
    probes = SimpleNamespace(encoded=np.zeros((9, 2), np.float32), target=np.zeros(9, int), seed=0)
    split = SimpleNamespace(reserve=np.array([], int), context=np.arange(3))
    assert honest_refusals(Guard(), SimpleNamespace(probes=probes, split=split)) is None
    split.reserve = np.arange(3, 9)
    assert honest_refusals(Guard(), SimpleNamespace(probes=probes, split=split)) == 1.0  # three rows are too few


@pytest.mark.parametrize(("shift", "word"), [(0.0, "detected"), (4.0, "not attributable")])
def test_a_score_must_go_beyond_what_rows_alone_give_away(shift: float, word: str, tmp_path: Path) -> None:
    """The same scores that separate members; in the second files members' rows are other rows altogether."""
    from indelible.attacks.tabular import PROBES
    from indelible.data.table_encoding import fit_encoding
    from indelible.tabular.block import lines
    from indelible.tabular.config import TabularProbeConfig
    from indelible.tabular.evaluate import evaluate_part
    from indelible.tabular.files import read_given
    from indelible.tabular.probe import _against_features
    from indelible.tabular.worlds import world_of

    rng = np.random.default_rng(0)
    for name, n in (("c", 12), ("m", 40), ("n", 80)):
        frame = pd.DataFrame(rng.normal(size=(n, 2)) + (shift if name == "m" else 0.0), columns=["x", "z"])
        frame.assign(y=[f"k{i % 2}" for i in range(n)]).to_csv(tmp_path / f"{name}.csv", index=False)
    files = {role: str(tmp_path / f"{role[0]}.csv") for role in ("members", "nonmembers", "context")}
    made = TabularProbeConfig(model="a", base="b", target="y", n_bootstrap=200, n_permutations=99, **files)
    given = read_given(made, 10)
    model: Any = SimpleNamespace(encoder=fit_encoding)
    world = world_of(given.prepared, given.split, model, seed=0)
    rows = np.sort(np.concatenate(list(world.groups.values())))

    def scored(strength: float) -> pd.DataFrame:
        more = strength * np.isin(rows, world.groups["member"])
        parts = [
            pd.DataFrame({"row": rows, "probe": name, "logprob": rng.normal(size=len(rows)) + more, "margin": 0.0})
            for name in PROBES
        ]
        return pd.concat(parts, ignore_index=True).assign(reason=None)

    place = {"config_id": "m", "table": "t", "seed": 0, "learning_rate": 0.1, "n_queries": 40, "epoch": 0}
    frame = lines(place, scored(2.0), scored(0.0), world)
    found = evaluate_part(frame, world, made, 0)
    assert found.verdict.word == "detected"
    verdict, control = _against_features(found, frame, world, made)
    assert verdict.word == word
    assert (control[0]["value"] > 0.9) == (shift > 0)
    assert control[0]["attack"] == "features-alone"


def test_gates_read_names_with_a_colon_and_look_at_every_configuration() -> None:
    gates = gates_of(["suite:mean:auc>0.6", "copy:p_holm<0.05", "verdict==detected", "copy:margin:auc.low>0.5"])
    assert [(g.attack, g.metric, g.part) for g in gates] == [
        ("suite:mean", "auc", "value"), ("copy", "p_holm", "value"), (None, "verdict", "value"),
        ("copy:margin", "auc", "low"),
    ]  # fmt: skip
    verdict = Verdict("not detected", "", ())

    def row(attack: str, metric: str, value: float, **more: Any) -> dict[str, Any]:
        return {"attack": attack, "model": "target", "metric": metric, "value": value, "part": "members", **more}

    def rows_of(area: float) -> list[dict[str, Any]]:
        return [
            row("suite:mean", "auc", area), row("suite:mean", "auc", 0.99, part="context"), row("copy", "p_holm", 0.5),
            row("copy:margin", "auc", 0.5, low=0.4), row("suite:mean", "auc", 0.99, model="base"),
        ]  # fmt: skip

    said = tripped(gates, {"a": (rows_of(0.55), verdict), "b": (rows_of(0.65), verdict)}, verdict)
    assert said == ("b: suite:mean:auc>0.6: suite:mean auc is 0.65",)
    for text, reason in (
        ("neutral:p_holmes<1", "Did you mean 'p_holm'?"),
        ("train-context:p_holm<1", "exists for scores that may decide a verdict"),
        ("row-order:auc>0.5", "has largest_difference alone"),
        ("suite:mean-raw:paper_rule>0", "there is auc and p_value alone"),
    ):
        with pytest.raises(ConfigError) as caught:
            gates_of([text])
        assert reason in str(caught.value)

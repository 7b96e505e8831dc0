"""`indelible tabular run` and `probe` in process, on a tiny network of random weights and made-up tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import Call, runner

from indelible.runs import verify
from indelible.tabular import block

pytest.importorskip("tabicl", reason="the extra 'tabular' is not installed")

NETWORK = {
    "embed_dim": 8, "col_num_blocks": 1, "col_nhead": 2, "col_num_inds": 4, "row_num_blocks": 1, "row_nhead": 2,
    "row_num_cls": 2, "icl_num_blocks": 1, "icl_nhead": 2, "max_classes": 4, "col_target_aware": True,
    "col_ssmax": "none", "icl_ssmax": "none", "zero_init": False, "ff_factor": 2,
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "context": 12, "least_nonmembers": 20, "reserve": 24, "n_bootstrap": 200, "n_permutations": 99,
}  # fmt: skip
SECRET = "Quillfeather"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `tabicl:` loads: 5,000 random weights."""
    import torch

    from indelible.models.tabular import save_tabular
    from indelible.models.tabular_tabicl import build_tabicl

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("network")
    save_tabular(build_tabicl(NETWORK), folder)
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, network: Path) -> Call:
    """Run a command line in a new folder with a table and a network: exit code, output, error output."""
    in_folder = runner(monkeypatch, capsys, tmp_path)
    rows().to_csv("t.csv", index=False)
    settings()

    def run(*words: object) -> tuple[int, str, str]:
        given = [str(network) if word == "NETWORK" else str(word).replace("NETWORK", str(network)) for word in words]
        return in_folder(*given)

    return run


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of the blocks that were run."""
    done: list[str] = []
    run = block.run_block

    def counted(one: Any, *rest: Any) -> Any:
        done.append(one.title)
        return run(one, *rest)

    monkeypatch.setattr("indelible.tabular.run.run_block", counted)
    return done


@pytest.fixture
def unforeseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No forecast, which trains and asks a little for itself."""
    monkeypatch.setattr("indelible.tabular.run.forecast", lambda *_, **__: "no forecast")


def rows(n: int = 120, classes: int = 2, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 3)).round(4), columns=["a", "b", "c"])
    frame["name"] = [f"{SECRET}-{i % 7}" for i in range(n)]
    return frame.assign(label=[f"class{i % classes}" for i in range(n)])


def settings(**more: Any) -> Path:
    path = Path("settings.yaml")
    path.write_text(yaml.safe_dump({**SETTINGS, **more}))
    return path


COMMON = (
    "tabular", "run", "--model", "tabicl:NETWORK", "--config", "settings.yaml", "--table", "t.csv", "--target", "label",
)  # fmt: skip


def found(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    metrics = json.loads((path / "metrics.json").read_text())
    return [row for row in metrics if all(row.get(key) == value for key, value in wanted.items())]


@pytest.mark.usefixtures("unforeseen")
def test_a_run_shows_its_controls_and_what_it_left_out(call: Call) -> None:
    words = (
        "--learning-rates",
        "1e-2,1e-4",
        "--queries",
        "16,900",
        "--epochs",
        100,
        "--probe-epochs",
        10,
        "--seeds",
        0,
    )
    code, out, err = call(*COMMON, *words, "--out", "out", "--fail-if", "train-context:auc>0.65")
    assert code == 1, err
    assert "gate: t-controlled-lr0.01-q16-seed0: train-context:auc>0.65" in out
    assert "t: 900 query rows (120 rows are too few for 900 members" in out
    path = Path("out")
    assert verify(path) == []
    assert not Path("out-work").exists()
    frame = pd.read_parquet(path / "tabular.parquet")
    assert set(frame["group"]) == {"member", "nonmember", "context"}
    assert set(frame["epoch"]) == {10, 100}
    early = frame[frame["epoch"] == 10]
    assert set(early["probe"]) == {"copy", "train-context"}
    assert set(early["group"]) == {"member", "nonmember"}
    assert frame.loc[frame["probe"] == "train-context", "reason"].notna().sum() == 2 * 12  # its own rows, at the end
    # labels were fitted at one rate and not at the other, and the positive control says so
    fitted = {
        row["learning_rate"]: row["value"] for row in found(path, attack="training", metric="accuracy", epoch=100)
    }
    assert fitted[0.01] == 1.0
    assert fitted[0.0001] < 0.9
    controls = found(path, attack="train-context", metric="auc", epoch=100, part="members")
    positive = {row["learning_rate"]: row["value"] for row in controls}
    assert positive[0.01] > max(0.7, positive[0.0001])
    # with the identity erased, rows of one class score alike, and classes are matched exactly: one half, exactly
    for row in found(path, attack="erased:raw", metric="auc", model="target", seed=0):
        assert row["value"] == pytest.approx(0.5, abs=1e-12)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["kind"] == "tabular"
    assert [one["distance"] for one in manifest["splits"]] == [0.0]
    assert {"900 query rows" in one["what"] for one in manifest["not_run"]} == {True, False}
    assert {one["word"] for one in manifest["configurations"]} <= {"detected", "not attributable", "not detected"}
    verdict = json.loads((path / "verdict.json").read_text())
    assert "Holm over the 2 cells" in verdict["overall"]["rule"]
    assert set(verdict["attacks"]) == {"t, Q 16, rate 0.01", "t, Q 16, rate 0.0001"}
    assert "  t: 120 rows" in f"  {err}"
    assert "features: 3 number (a, b, c); 1 category (name)" in err
    assert "TVD 0.0000, classes exactly equal" in err
    text = b"".join(file.read_bytes() for file in path.rglob("*") if file.suffix in (".json", ".md", ".html"))
    assert SECRET.encode() not in text
    assert not (path / "rows.parquet").exists()
    before = (path / "report.html").read_bytes()
    code, out, err = call("report", "out")
    assert code == 0, err
    assert verify(path) == []
    assert len((path / "report.html").read_bytes()) > 0.9 * len(before)
    code, out, err = call(*COMMON, *words, "--out", "out")
    assert code == 2
    assert "holds a finished run" in err


@pytest.mark.usefixtures("unforeseen")
def test_stopped_after_a_block_it_goes_on_with_the_same_bytes(
    call: Call, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    monkeypatch.setattr("indelible.report.tabular.render_tabular", lambda path, manifest: None)  # tested elsewhere
    words = (*COMMON, "--learning-rates", "1e-2", "--queries", 16, "--epochs", 4, "--seeds", "0,1")
    code, _, err = call(*words, "--out", "whole")
    assert code == 0, err
    assert len(trained) == 2
    trained.clear()

    real, calls = block.lines, [0]

    def stop(*given: Any) -> pd.DataFrame:
        calls[0] += 1
        if calls[0] == 5:  # the first block has three probe epochs
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(block, "lines", stop)
        code, _, err = call(*words, "--out", "halves")
    assert code == 130
    assert len(trained) == 2  # the second was begun
    trained.clear()
    code, _, err = call(*words, "--plan", "--out", "halves")
    assert code == 0
    assert trained == []
    code, _, err = call(*words, "--out", "halves")
    assert code == 0, err
    assert [title.rpartition(" ")[2] for title in trained] == ["1"]
    for name in ("tabular.parquet", "metrics.json", "verdict.json", "split.parquet"):
        assert Path("whole", name).read_bytes() == Path("halves", name).read_bytes(), name


def test_a_plan_runs_nothing(call: Call, trained: list[str]) -> None:
    code, out, err = call(*COMMON, "--queries", 16, "--epochs", 5, "--out", "out", "--plan")
    assert code == 0, err
    assert "12 configurations in 3 blocks, 60 epochs" in out
    assert "probed after 1, 2, 5, judged after the last" in out
    assert trained == []
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (None, ("--target", "lable"), "target 'lable' is none of its columns; did you mean 'label'"),
        (lambda t: t.assign(label="x"), (), "the target 'label' is constant"),
        (lambda t: t.assign(label=[f"k{i % 6}" for i in range(len(t))]), (), "expected at most 4"),
        (lambda t: t.assign(a=1.0, b=2.0, c=0.0, name="n"), (), "so that all rows are duplicates"),
        (lambda t: t.head(30), ("--queries", 16), "give smaller --queries"),
        (lambda t: t.assign(a=[*map(str, t["a"][:-1]), "garbage"]), (), "1 of 120 values are not numbers"),
        (None, ("--queries", "x"), "--queries x: expected whole numbers"),
        (None, ("--epochs", 600), "epochs"),
        (None, ("--model", "tabicl:nowhere"), "no folder or file"),
        (None, ("--model", "tabpfn:."), "expected a TabPFN v2 classifier's checkpoint (.ckpt), or a folder"),
        (None, ("--fail-if", "cpoy:auc>0.6"), "Did you mean 'copy'"),
        (None, ("--fail-if", "copy:raw:tpr@0.1>0.6"), "of copy:raw there is auc and p_value alone"),
        (None, ("--table", "wine"), "--target with 2 tables"),
    ],
)
def test_wrong_input_ends_in_one_line(call: Call, change: Any, words: tuple[Any, ...], said: str) -> None:
    if change is not None:
        change(rows()).to_csv("t.csv", index=False)
    code, _, err = call(*COMMON, *words, "--out", "out")
    assert code == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("indelible: ")]
    assert said in line
    assert not Path("out").exists()


@pytest.mark.usefixtures("unforeseen")
def test_defences_stand_beside_each_other(call: Call) -> None:
    settings(defences={"learning_rate": 1e-2, "looks": 3, "patience": 1, "large_queries": 30})
    words = ("--learning-rates", "1e-2", "--queries", 16, "--epochs", 8, "--seeds", 0, "--out", "out")
    code, _, err = call(*COMMON, *words)
    assert code == 0, err
    path = Path("out")
    manifest = json.loads((path / "manifest.json").read_text())
    names = [one["defence"] for one in manifest["defences"]]
    assert names == ["none", "more-queries", "low-learning-rate", "resampled", "early-stopping", "dp-8",
                     "refuse-degenerate-contexts"]  # fmt: skip
    private = next(one for one in manifest["defences"] if one["defence"] == "dp-8")
    assert 0 < private["seeds"]["0"]["epsilon"] <= 8.01
    for name in names:
        (accuracy,) = found(path, defence=name, attack="fresh-context", metric="accuracy", model="target", seed=0)
        assert 0 <= accuracy["value"] <= 1
        (area,) = found(path, defence=name, attack="train-context", metric="auc", seed=0)
        assert area["value"] is not None
    (copied,) = found(path, defence="refuse-degenerate-contexts", attack="copy", metric="auc", seed=0)
    assert copied["value"] is None
    assert "refused: fewer than 8 rows" in copied["reason"]
    refusals = found(path, defence="refuse-degenerate-contexts", metric="refused", seed=0)
    share = {row["attack"]: row["value"] for row in refusals}
    assert share["copy"] == share["copies"] == 1.0
    assert share["train-context"] == share["honest"] == 0.0
    frame = pd.read_parquet(path / "tabular.parquet")
    (ended,) = frame.loc[frame["config_id"].str.contains("early-stopping.*true"), "epoch"].unique()
    assert set(frame.loc[frame["config_id"] == "t-defence-early-stopping-q16-seed0", "epoch"]) == {ended}
    report = (path / "report.md").read_text()
    assert "| refuse-degenerate-contexts |" in report
    assert "refused: fewer than 8 rows" in report


@pytest.mark.usefixtures("unforeseen")
def test_several_tables_and_ways_of_training(call: Call) -> None:
    rows(120, classes=4, seed=1).drop(columns="b").to_csv("u.csv", index=False)
    tables = [{"source": "t.csv", "target": "label"}, {"source": "u.csv", "target": "label", "name": "four"}]
    settings(tables=tables, profiles=["resampled", "several"], epochs=3, probe_epochs=[3])
    words = ("--learning-rates", "1e-2", "--queries", 16, "--seeds", 0, "--out", "out", "--with-text")
    code, _, err = call(*COMMON[:6], *words)
    assert code == 0, err
    path = Path("out")
    frame = pd.read_parquet(path / "tabular.parquet")
    assert frame["config_id"].nunique() == 4
    assert {"t-several-lr0.01-q16-seed0", "four-several-lr0.01-q16-seed0"} <= set(frame["config_id"])
    assert (path / "figures" / "cardinality.png").exists()
    assert SECRET in str(pd.read_parquet(path / "rows.parquet")["row"].iloc[0])
    assert "handle it like the data" in (path / "report.html").read_text()


def test_a_model_tuned_elsewhere(call: Call, network: Path) -> None:
    """Tuned here by hand on some rows, as a user would; files share rows, and their labels differ."""
    import torch

    from indelible.models.tabular import load_tabular, save_tabular
    from indelible.tabular.config import TabularProbeConfig
    from indelible.tabular.files import read_given
    from indelible.tabular.worlds import world_of
    from indelible.training.tabular import FineTune, fine_tune

    t = rows(160).drop(columns="name")
    parts = {"c": t[:12], "m": t[12:32], "n": pd.concat([t[32:90], t[12:15], t[30:32]]), "r": t[90:]}
    for name, part in parts.items():
        part.to_csv(f"{name}.csv", index=False)
    files = {"members": "m.csv", "nonmembers": "n.csv", "context": "c.csv", "reserve": "r.csv", "target": "label"}
    base = load_tabular(f"tabicl:{network}")
    given = read_given(TabularProbeConfig(model="tabicl:x", base="tabicl:y", **files), 4)
    assert given.rows["nonmembers"] == {"read": 63, "without_target": 0, "repeated": 5, "used": 58}
    world = world_of(given.prepared, given.split, base, seed=0)
    setting = FineTune(learning_rate=1e-2, n_queries=20, epochs=60, probe_epochs=(60,), seed=0)
    ((last,),) = fine_tune(base, [world.task()], [setting])
    tuned = base.clone()
    tuned.module.load_state_dict({k: torch.as_tensor(v) for k, v in last.state.items()})
    save_tabular(tuned, "tuned")
    words = [word for name, value in files.items() for word in (f"--{name}", value)]
    code, _, err = call(
        "tabular", "probe", "--model", "tabicl:tuned", "--base", "tabicl:NETWORK", *words, "--out", "out"
    )
    assert code == 0, err
    assert "nonmembers: 58 rows (5 repeated ones removed)" in err
    assert verify(Path("out")) == []
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["rows"]["nonmembers"]["repeated"] == 5
    assert manifest["models"]["target"]["fingerprint"] == tuned.fingerprint
    frame = pd.read_parquet("out/tabular.parquet")
    assert len(set(frame["record_id"])) == 12 + 20 + 58
    verdict = json.loads(Path("out/verdict.json").read_text())
    assert verdict["controls"]["features-alone"]["ran"]
    assert any("blind control features-alone" in reason for reason in verdict["overall"]["reasons"])
    # what the tuned model says of a member under the training context is what the training saw
    loss = -frame.loc[(frame["group"] == "member") & (frame["probe"] == "train-context"), "score"].mean()
    assert loss == pytest.approx(last.loss, abs=1e-4)
    code, _, err = call(
        "tabular", "probe", "--model", "tabicl:NETWORK", "--base", "tabicl:NETWORK", *words, "--out", "no"
    )
    assert code == 2
    assert "are the same weights" in err
    parts["n"].rename(columns={"b": "bb"}).to_csv("n.csv", index=False)
    code, _, err = call(
        "tabular", "probe", "--model", "tabicl:tuned", "--base", "tabicl:NETWORK", *words, "--out", "no"
    )
    assert code == 2
    assert "n.csv lacks b and has bb beside; expected the columns of c.csv" in err


PROBED = ("tabular", "probe", "--model", "tabicl:tuned", "--base", "tabicl:NETWORK", "--members", "m.csv",
          "--context", "c.csv", "--target", "label", "--nonmembers")  # fmt: skip


@pytest.fixture
def files(call: Call, network: Path) -> None:
    """Members, context and non-members as files; a model whose weights are the network's, moved a little."""
    import torch

    from indelible.models.tabular import load_tabular, save_tabular

    model = load_tabular(f"tabicl:{network}").clone()
    with torch.no_grad():
        for weights in model.module.parameters():
            weights.add_(0.01)
    save_tabular(model, "tuned")
    t = rows(120).drop(columns="name")
    t[:12].to_csv("c.csv", index=False)
    t[12:42].to_csv("m.csv", index=False)
    t[42:].to_csv("n.csv", index=False)
    t[12:42].iloc[::-1].to_csv("again.csv", index=False)
    t[12:42].query("label == 'class0'").to_csv("zeros.csv", index=False)
    t[42:].query("label == 'class1'").to_csv("ones.csv", index=False)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ones.csv", "--members", "zeros.csv"), "zeros.csv has rows of class0 alone, ones.csv of class1 alone"),
        (("again.csv",), "again.csv and m.csv share all rows"),
        (("no.csv", "--model", "tabicl:nowhere"), "no.csv: no such file"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_compared_end_in_one_line(call: Call, words: tuple[str, ...], said: str) -> None:
    code, _, err = call(*PROBED, *words, "--out", "out")
    assert code == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("indelible: ")]
    assert said in line
    assert not Path("out").exists()


@pytest.mark.usefixtures("files")
def test_a_probe_shows_the_scores_that_its_reasons_name(call: Call) -> None:
    code, out, err = call(*PROBED, "n.csv", "--out", "out")
    assert code == 0, err
    assert "all files together: 120 rows" in err
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["data"]["all files together"]["source"] == "c.csv, m.csv, n.csv"
    controls = json.loads(Path("out/verdict.json").read_text())["controls"]
    shown = {line.split()[0]: line.split()[1] for line in out.splitlines() if len(line.split()) > 3}
    for name in ("erased", "train-context", "features-alone"):
        assert shown[name] == f"{controls[name]['auc']:.3f}"
        assert f"control {name}: AUC {shown[name]}" in out


def test_a_file_that_is_not_there_is_named_before_a_model_is_loaded(call: Call) -> None:
    code, _, err = call("tabular", "run", "--model", "tabicl:nowhere", "--table", "no.csv", "--target", "y")
    assert code == 2
    assert "no.csv: no such file" in err

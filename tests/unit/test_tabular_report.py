"""Reports of made-up tabular runs: what they say, what is drawn, and that nothing gets out of its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from indelible import runs
from indelible.errors import UserError
from indelible.report import rerender
from indelible.report import tabular_wording as wording
from indelible.report.tabular import build, render_tabular
from indelible.report.tabular_facts import Place, read_tabular
from indelible.report.tabular_figures import draw
from indelible.report.tabular_tables import grid_table, rule_cell, suite_table
from indelible.stats.tabular import evaluate_tabular
from indelible.tabular.evaluate import Evaluated, judged, placed, seeds_together

NASTY = "<script>alert(1)</script> | `x` ![i](http://evil.example/a.png) \u202e\"'&"
TABLES = {f"two {NASTY}": 2, "five": 5}
RATES = (0.01, 0.001)
SEEDS = (0, 1)


def scores(k: int, strength: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Records and long-form scores of 40 members, 120 non-members and 20 context rows; `strength` is what members have
    more under the training context, a quarter of it under `copy`."""
    rng = np.random.default_rng(seed)
    part = np.repeat(["member", "nonmember", "context"], [40, 120, 20])
    records = pd.DataFrame({"row": np.arange(180), "part": part, "label": np.arange(180) % k})
    frames = []
    for name, share in (("copy", 0.25), ("neutral", 0.0), ("suite:mean", 0.1), ("suite:min", 0.0),
                        ("train-context", 1.0), ("fresh-context", 0.0)):  # fmt: skip
        values = rng.normal(size=180) + share * strength * (part == "member")
        raw = f"{name}-raw" if ":" in name else f"{name}:raw"
        for attack, model, column in ((name, "target", values), (raw, "base", rng.normal(size=180))):
            frames.append(pd.DataFrame({"row": records["row"], "attack": attack, "model": model, "score": column}))
    frames.append(
        pd.DataFrame(
            {"row": records["row"], "attack": "erased:raw", "model": "target", "score": records["label"] * 1.0}
        )
    )
    return records, pd.concat(frames, ignore_index=True).assign(reason=None)


def training(value: float, metric: str = "accuracy") -> dict[str, Any]:
    return {"attack": "training", "model": "target", "metric": metric, "value": value, "part": "members",
            "n_members": 40, "n_nonmembers": 0, "reason": None}  # fmt: skip


def written(path: Path, odd: str = NASTY) -> dict[str, Any]:
    """metrics.json and verdict.json of a run of two tables, two rates and two seeds, as the run writes them; and the
    draft of its manifest."""
    made: list[Evaluated] = []
    metrics: list[dict[str, Any]] = []
    configurations = []
    for table, k in TABLES.items():
        for rate in RATES:
            cell = {"table": table, "profile": "controlled", "defence": None, "n_queries": 40, "learning_rate": rate}
            by_seed = {}
            for seed in SEEDS:
                config_id = f"{table}-{rate:g}-{seed}"
                records, frame = scores(k, 3.0 if rate == 0.01 else 0.0, seed)
                found = evaluate_tabular(
                    records, frame, n_choices=k, randomised=True, seed=seed, n_bootstrap=200, n_permutations=99
                )
                here = {"config_id": config_id, **cell}
                rows = placed([*found.metrics, training(0.9 if rate == 0.01 else 0.6)], here, 20, seed)
                early = {"attack": "copy", "model": "target", "metric": "auc", "value": 0.5, "part": "members"}
                metrics += [*rows, *placed([early, training(0.55)], here, 5, seed)]
                made.append(Evaluated(config_id, here, tuple(rows), found.verdict, (40, 120)))
                by_seed[seed] = rows
                configurations.append({**here, "seed": seed, "epoch": 20, "word": found.verdict.word})
            metrics += seeds_together(by_seed, cell)
    verdict, summary = judged(made)
    for name in ("none", "refuse-degenerate-contexts"):
        place = {"table": "five", "profile": "controlled", "defence": name, "n_queries": 40, "learning_rate": 0.01}
        copied = {"attack": "copy", "model": "target", "metric": "auc", "value": 0.7, "part": "members", "reason": None,
                  "n_members": 40, "n_nonmembers": 120}  # fmt: skip
        useful = {**copied, "attack": "fresh-context", "metric": "accuracy", "value": 0.875}
        more = [useful, {**useful, "model": "base", "value": 0.25}]
        if name != "none":
            copied |= {"value": None, "reason": f"no record has a score (most common reason: refused: too few {odd})"}
            more.append({**copied, "attack": "honest", "metric": "refused", "value": 0.03, "reason": None})
        by_seed = {seed: [copied, *more] for seed in SEEDS}
        metrics += [
            row for seed, rows in by_seed.items() for row in placed(rows, {"config_id": None, **place}, None, seed)
        ]
        metrics += seeds_together(by_seed, place)
    run = runs.RunDir.open(path)
    run.write_json("metrics.json", metrics, nan_as_null=True)
    own = {one.config_id: one.verdict.to_dict() for one in made}
    run.write_json(
        "verdict.json", {**verdict.to_dict(), "configurations": own, "grid": summary.to_dict()}, nan_as_null=True
    )
    data = {
        table: {"source": f"{odd}.csv", "n_rows": 500, "classes": [f"c{i} {odd}" for i in range(k)],
                "sha256": "ab" * 32, "duplicates": {"exact": 3, "near": 1, "rule": odd}, "notes": [f"inferred {odd}"]}
        for table, k in TABLES.items()
    }  # fmt: skip
    splits = [
        {"table": table, "seed": seed, "n_queries": 40, "n_members": 40, "n_nonmembers": 120, "n_context": 20,
         "n_reserve": 9, "randomised": True, "distance": 0.0125, "distance_name": "TVD", "matched_exactly": False,
         "sha256": "cd" * 32, "notes": [f"split {odd}"]}
        for table in TABLES for seed in SEEDS
    ]  # fmt: skip
    defences = [
        {"table": "five", "defence": name, "what": f"does {odd}", "guard": {"rows": 4} if name != "none" else None,
         "private": {"delta": 0.002, "noise_multiplier": 3.25, "clip_norm": 1.0, "sampling_rate": 1.0, "rows": 40,
                     "expected_rows_a_step": 40, "adjacency": f"one row {odd}"} if name == "none" else None,
         "seeds": {str(s): {"epoch": 20, "stopped": None, "epsilon": None} for s in SEEDS}}
        for name in ("none", "refuse-degenerate-contexts")
    ]  # fmt: skip
    return {
        "kind": "tabular", "name": f"run {odd}", "created": "2026-01-02T03:04:05+00:00", "indelible_version": "0.1.0",
        "command": ["indelible", "tabular", "run", "--table", f"{odd}.csv"], "seeds": {"seeds": list(SEEDS)},
        "config": {"given": {"tables": [odd]}, "resolved": {"tables": [odd], "randomise": True}},
        "versions": {"torch": "2.13.0"},
        "models": {"base": {"source": f"tabicl:{odd}", "fingerprint": "ef" * 32, "notes": [f"model {odd}"]}},
        "data": data, "splits": splits, "configurations": configurations, "defences": defences, "dtype": "float32",
        "probes": [{"name": "copy", "description": f"asks {odd}", "in_suite": True, "settings": {"k": 4}}],
        "not_run": [{"what": f"512 {odd}", "reason": f"too few rows {odd}"}], "timings": {"grid": 61.0},
    }  # fmt: skip


class Page(HTMLParser):
    """Tags with attributes, and the text of every section by id; the header's under ""."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.current, self.silent = "", False
        self.open: list[str] = []
        self.feed(html)
        assert self.open == [], "unclosed elements"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br", "link"}:
            self.open.append(tag)
        if tag == "section":
            self.current = dict(attrs).get("id") or "other"
        self.silent = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.silent = False

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.sections[self.current] = self.sections.get(self.current, "") + " " + data


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str, str, Path]:
    path = tmp_path_factory.mktemp("tabular") / "run"
    manifest = written(path)
    render_tabular(path, manifest)
    runs.RunDir(path).finish(manifest)
    html = (path / "report.html").read_text(encoding="utf-8")
    return Page(html), html, (path / "report.md").read_text(encoding="utf-8"), path


def test_the_page_says_what_a_reader_must_be_told(full: tuple[Page, str, str, Path]) -> None:
    sections = {name: " ".join(text.split()) for name, text in full[0].sections.items()}
    expected = {
        "verdict": ["One score decides, copy", "Holm over the 4 cells", "know nothing would meet it",
                    "positive control train-context: members' labels were fitted in 4 of 8"],
        "numbers": ["Largest AUC, copy", "the largest of so many by chance", "Labels were shuffled"],
        "grid": ["five: every cell", "Q 40, rate 0.01", "90%", "by chance"],
        "probes": ["Probes: five, Q 40, rate 0.01", "realised FPR", "suite:min", "Other cells: 2", "asks <script>"],
        "cardinality": ["1 − 1/(2K)"],
        "defences": ["87.5%", "25%", "refused", "too few <script>", "before any tuning", "honest contexts refused: 3%",
                     "40 / 120", "delta 0.002; noise 3.25 of a clip of 1; 40 of 40 rows a step (rate 1)",
                     "one row <script>"],
        "checks": ["TVD 0.0125", "classes equal in 0 of 2", "and 1 near ones", "inferred <script>", "split <script>",
                   "Rows of the training context"],
        "limits": ["does not show absence of memorisation", "It is a line, not a bound", "512 <script>", "no rows of"],
        "reproduction": ["indelible tabular run", "2.13.0", "ab" * 32, "cd" * 32, "ef" * 32, "61.0 s", "metrics.json"],
    }  # fmt: skip
    for section, texts in expected.items():
        for text in texts:
            assert text in sections[section], (section, text)


def test_labels_are_those_of_the_grid_whatever_defences_were_trained_on(full: tuple[Page, str, str, Path]) -> None:
    run = read_tabular(full[3])
    true = {**run.manifest, "config": {"resolved": {"randomise": False}}}
    assert build(run, {}).labels == wording.RANDOMISED
    assert build(read_tabular(full[3], true), {}).labels == wording.TRUE_LABELS  # its splits say shuffled all the same


def test_nothing_from_data_becomes_markup(full: tuple[Page, str, str, Path]) -> None:
    page, html, md, _ = full
    assert {tag for tag, _ in page.tags} & {"script", "iframe", "object", "a", "form", "link"} == set()
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(sources) == 5  # two heat maps, two curves over epochs, label cardinality
    assert all(str(source).startswith("data:image/png;base64,") for source in sources)
    assert "\u202e" not in html
    assert "\u202e" not in md
    code = re.sub(r"```.*?```", "", md, flags=re.DOTALL)
    assert "<script" not in code
    pictures = re.findall(r"(?<!\\)!\[(?:[^\]\\]|\\.)*\]\(([^)]*)\)", code)
    assert len(pictures) == 5
    assert all(source.startswith("figures/") for source in pictures)
    assert all((full[3] / source).exists() for source in pictures)


def test_the_cell_shown_in_full_is_chosen_by_fit_alone(full: tuple[Page, str, str, Path]) -> None:
    run = read_tabular(full[3])
    assert run.reference("five") == Place("five", "controlled", None, 40, 0.01)
    for row in run.metrics:
        if row["attack"] == "training" and row["seed"] is None:
            row["value"] = 0.5
    assert run.reference("five") == Place("five", "controlled", None, 40, 0.001)  # the smaller of equals


def test_numbers_stand_with_interval_seeds_and_chance(full: tuple[Page, str, str, Path]) -> None:
    run = read_tabular(full[3])
    place = run.reference("five")
    assert place is not None
    values = [row["value"] for _, row in run.by_seed(place, "train-context", "auc")]
    table = {line.head: line.cells for line in suite_table(run, place).lines}
    area, line = table["train-context"][:2]
    assert area.text == f"{np.mean(values):.3f}"
    assert f"2 seeds {min(values):.3f} to {max(values):.3f}" in area.detail
    assert line.text == f"{(np.mean(values) - 0.5) / 0.4:.3f}"  # five classes: the line is 0.9
    rows = [row for _, row in run.by_seed(place, "copy", "paper_rule")]
    cell = rule_cell(run, place, "copy")
    assert cell.text == f"{round(sum(row['value'] for row in rows))} of 2"
    assert cell.detail == f"by chance {100 * np.mean([row['null_rate'] for row in rows]):.0f}%"
    assert "by chance" not in rule_cell(run, place, "neutral").detail
    assert len(grid_table(run, "five").lines) == 2
    assert run.curve(place, "copy", "auc")[0] == (5, 0.5)
    assert [epoch for epoch, _ in run.curve(place, "training", "accuracy")] == [5, 20]


def test_a_finished_run_is_rendered_again_the_same(full: tuple[Page, str, str, Path]) -> None:
    path = full[3]
    before = {name: (path / name).read_bytes() for name in ("report.html", "report.md", "figures/cardinality.png")}
    rerender(path)
    assert runs.verify(path) == []
    for name, content in before.items():
        assert (path / name).read_bytes() == content, name


def test_a_run_without_any_score_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run"
    manifest = written(path)
    metrics = runs.read_json(path / "metrics.json", list)
    for row in metrics:
        row |= {"value": None, "reason": "training diverged in epoch 3", "low": None, "high": None}
    runs.write_json(path / "metrics.json", metrics)
    verdict = {"overall": {"word": "not evaluable", "rule": "r", "reasons": ["training diverged in epoch 3"]}}
    runs.write_json(path / "verdict.json", verdict)
    render_tabular(path, {**manifest, "defences": None})
    page = Page((path / "report.html").read_text())
    assert "It is not a pass." in page.sections["verdict"]
    assert "training diverged in epoch 3" in page.sections["probes"]
    assert "defences" not in page.sections
    assert draw(read_tabular(path, manifest)) == []
    assert not list(path.rglob("*.png"))


def test_a_model_tuned_elsewhere_has_files_and_no_grid(tmp_path: Path) -> None:
    path = tmp_path / "run"
    draft = written(path)
    metrics = [
        {**row, "profile": None, "n_queries": None, "learning_rate": None, "epoch": None, "config_id": "model"}
        for row in runs.read_json(path / "metrics.json", list)
        if row["table"] == "five" and row["seed"] == 0 and row["learning_rate"] == 0.01 and row["epoch"] == 20
    ]
    runs.write_json(path / "metrics.json", metrics)
    place = {"config_id": "model", "table": "five", "profile": None, "defence": None, "n_queries": None,
             "learning_rate": None, "seed": 0, "epoch": None, "word": "detected"}  # fmt: skip
    files = {"members": {"source": f"m{NASTY}.csv", "read": 43, "without_target": 0, "repeated": 3, "used": 40}}
    own = {"kind": "tabular-probe", "configurations": [place], "defences": None, "rows": files}
    kept = {"data": {"five": draft["data"]["five"]}, "splits": [s for s in draft["splits"] if s["table"] == "five"][:1]}
    builtin = {"source": "builtin:tabicl-small", "parameters": 171022}
    models = {"models": {"target": {"source": "tabicl:tuned"}, "base": builtin}}
    verdict = {"overall": {"word": "not detected", "rule": "r", "reasons": ["nothing"]}}
    runs.write_json(path / "verdict.json", verdict)
    render_tabular(path, {**draft, **own, **kept, **models})
    page = Page((path / "report.html").read_text())
    assert "the model as given" in page.sections["probes"]
    assert "Repeated" in page.sections["checks"]
    assert "order of their values" in " ".join(page.sections["limits"].split())
    assert "Labels are those of the table" in page.sections["numbers"]
    assert "grid" not in page.sections
    assert "Configurations" not in page.sections["numbers"]
    assert "AUC, copy" in page.sections["numbers"]
    assert "All files as one table" in page.sections[""]
    markdown = (path / "report.md").read_text()
    assert "builtin:tabicl-small: 171 022 parameters" in markdown.replace("\u202f", " ").replace("\xa0", " ")
    for said in ("and about no other model", "## Grid", "Probes of the other cells", "use a larger table"):
        assert said not in markdown
        assert said not in " ".join(page.sections.values())


def test_the_model_that_is_tuned_is_the_one_the_verdict_is_about(full: tuple[Page, str, str, Path]) -> None:
    draft = read_tabular(full[3])
    manifest = {**draft.manifest, "models": {"base": {"source": "builtin:tabicl-small"}}}
    assert any("about no other model" in value for _, value in build(read_tabular(full[3], manifest), {}).identity)


def test_one_seed_has_its_own_reason(tmp_path: Path) -> None:
    path = tmp_path / "run"
    draft = written(path)
    manifest = {**draft, "configurations": [one for one in draft["configurations"] if one["seed"] == 0]}
    reason = "40 non-members; an FPR of 0.01 needs at least 100"
    metrics = [row for row in runs.read_json(path / "metrics.json", list) if row["seed"] in (0, None)]
    for row in metrics:
        if row["metric"] == "tpr@0.01":
            wrapped = f"1 of 1 seeds have no value ({reason})"
            row |= {"value": None, "low": None, "high": None, "reason": wrapped if row["seed"] is None else reason}
    runs.write_json(path / "metrics.json", metrics)
    run = read_tabular(path, manifest)
    place = run.reference("five")
    assert place is not None
    cells = {line.head: line.cells[2] for line in suite_table(run, place).lines}
    assert cells["copy"].detail == reason


def test_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected tabular or tabular-probe"):
        read_tabular(tmp_path, {"kind": "audit"})

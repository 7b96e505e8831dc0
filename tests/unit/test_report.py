"""Reports of a made-up but complete run: what they say, and that nothing from the data gets out of its place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from indelible import report, runs
from indelible.errors import UserError
from indelible.report.markdown import md
from indelible.stats.roc import auc, bounded_operating_point, operating_point

NASTY = "<script>alert(1)</script> | `x` ![i](http://evil.example/a.png) \u202e\"'&"
ATTACKS = {"loss": 1.1, "min-k": 0.9, "icp-sp": 1.4, "recall": -0.6, "never": float("nan")}


def build_run(
    path: Path, *, base: bool = True, blind: bool = True, texts: bool = False, nasty: bool = True, n: int = 120
) -> dict[str, Any]:
    """Fill `path` with every table of an audit and return the manifest, not yet written."""
    rng = np.random.default_rng(0)
    run = runs.RunDir.open(path)
    member = np.arange(2 * n) < n
    ids = [f"row-{i:04d}" for i in range(2 * n)]
    odd = NASTY if nasty else "patient-17"
    ids[0] = odd
    n_tokens = rng.integers(5, 90, 2 * n)
    run.write_parquet(
        "records.parquet",
        pd.DataFrame(
            {"record_id": ids, "member": member, "group": [odd, *[""] * (2 * n - 1)], "n_target_tokens": n_tokens}
        ),
    )
    tables, metrics, verdicts = [], [], {}

    def add(attack: str, model: str, shift: float) -> None:
        scores = rng.normal(size=2 * n) + shift * member
        if shift > 0:
            scores[0] = 9.0  # the odd record is the most exposed one
        why = None if np.isfinite(shift) else f"{odd} cannot be scored"
        tables.append(
            pd.DataFrame({"record_id": ids, "attack": attack, "model": model, "score": scores, "reason": why})
        )
        metrics.extend(rows(attack, model, scores[member], scores[~member], why))

    for attack, shift in ATTACKS.items():
        add(attack, "target", shift)
        if base:
            add(attack, "base", 0.05 * shift)
        word = "not evaluable" if np.isnan(shift) else "detected" if shift > 0 else "not attributable"
        verdicts[attack] = {"word": word, "rule": f"rule of {odd}", "reasons": [f"reason {odd}"]}
        metrics.append(row(attack, "p_holm", "target", None if np.isnan(shift) else 0.0004, reason=f"why {odd}"))
        metrics.append(row(attack, "smallest_auc", "target", 0.61))
        if base:
            metrics.append(row(attack, "auc_minus_base", "target", 0.2, 0.1, 0.3))
        if blind:
            metrics.append(row(attack, "auc_minus_blind", "target", 0.17, 0.07, 0.27))
    if blind:
        metrics.append(row("bag-of-words", "auc", "none", 0.52, 0.45, 0.59))
    run.write_parquet("scores.parquet", pd.concat(tables))
    run.write_json("metrics.json", metrics)
    off = {"ran": False, "reason": f"not given {odd}"}
    overall = {"word": "detected", "rule": f"overall rule {odd}", "reasons": [f"overall reason {odd}"]}
    words = {"ran": True, "reason": None, "auc": 0.52, "low": 0.45, "high": 0.59, "p_value": 0.3}
    controls = {"base": {"ran": True} if base else off, "bag-of-words": words if blind else off}
    run.write_json("verdict.json", {"overall": overall, "attacks": verdicts, "controls": controls})
    if texts:
        run.write_json("texts.json", {ids[0]: {"prompt": f"prompt {odd}", "target": "the target text"}})
    return manifest(n, odd, base)


def row(
    attack: str, metric: str, model: str, value: Any, low: Any = None, high: Any = None, **more: Any
) -> dict[str, Any]:
    found = {
        "attack": attack,
        "model": model,
        "metric": metric,
        "value": value,
        "low": low,
        "high": high,
        "level": 0.95,
    }
    return {**found, **more, "reason": more.get("reason") if value is None else None}


def rows(attack: str, model: str, members: Any, nonmembers: Any, why: str | None) -> list[dict[str, Any]]:
    """AUC and rates, as the statistics write them."""
    sizes = {"n_members": len(members), "n_nonmembers": len(nonmembers)}
    if why:
        return [
            row(attack, metric, model, None, reason=why, **sizes)
            for metric in ("auc", "tpr@0.1", "tpr@0.01", "tpr@0.001")
        ]
    value = auc(members, nonmembers)
    found = [row(attack, "auc", model, value, value - 0.05, value + 0.05, **sizes)]
    points = {f"tpr@{fpr:g}": operating_point(members, nonmembers, fpr) for fpr in (0.1, 0.01, 0.001)}
    points["tpr_bounded@0.01"] = bounded_operating_point(members, nonmembers, 0.01)
    for metric, point in points.items():
        low, high = (None, None) if point.tpr is None else (max(0, point.tpr - 0.06), point.tpr + 0.06)
        more = {"realised_fpr": point.realised_fpr, "fpr_upper": point.fpr_upper, "threshold": point.threshold}
        found.append(row(attack, metric, model, point.tpr, low, high, reason=point.reason, **more, **sizes))
    return found


def manifest(n: int, odd: str, base: bool) -> dict[str, Any]:
    model = {
        "source": f"out/model {odd}",
        "fingerprint": "ab" * 32,
        "kind": "causal",
        "n_parameters": 134515008,
        "adapter": None,
    }
    data = {"source": f"train {odd}.jsonl", "format": "prompt/response", "sha256": "cd" * 32, "n_rows": n}
    definition = {
        "settings": {"k": 0.2},
        "access": "log-probabilities",
        "formula": f"mean log p {odd}",
        "paper": "section IV",
        "deviation": "none",
        "fitted": False,
    }
    dropped = {"near_member": {"nonmember": 7, "member": 0, "pool": 0}, odd: {"member": 1}}
    return {
        "kind": "audit",
        "name": f"run {odd}",
        "created": "2026-01-02T03:04:05+00:00",
        "indelible_version": "0.1.0",
        "command": ["indelible", "audit", "--members", f"train {odd}.jsonl"],
        "versions": {"torch": "2.13.0", "transformers": "5.0.0"},
        "hardware": {"cpu": "a CPU", "cores": 2, "memory_gib": 8.0, "device": "cpu"},
        "dtype": "float32",
        "seeds": {"audit": 0, "probes": 1},
        "config": {"given": {"members": odd}, "resolved": {"members": odd, "batch_tokens": 4096}},
        "models": {"target": model, "base": {**model, "source": "a base"} if base else None, "reference": None},
        "data": {"members": data, "nonmembers": {**data, "source": "heldout.jsonl"}, "pool": None},
        "cohort": {"n_members": n, "n_nonmembers": n, "n_pool": 12, "dropped": dropped, "notes": [f"note {odd}"]},
        "attacks": [{"name": name, **definition} for name in ATTACKS],
        "counts": {"asked": 9600, "unique": 9580, "unscorable": {"never": {f"{odd} cannot be scored": 2 * n}}},
        "training": {"epochs": 3, "learning_rate": 1e-4, "schedule": "cosine", "note": odd},
        "threat_model": {"access": "log-probabilities of given text", "knowledge": odd, "queries_per_record": 13},
        "not_run": [{"what": "canaries", "reason": f"none planted {odd}"}],
        "timings": {"load": 1.25, "score": 61.0},
    }


class Page(HTMLParser):
    """Tags with attributes, the text of the page, and that of every section by id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.current, self.silent = "", False
        self.open: list[str] = []
        self.feed(html)
        assert self.open == [], "unclosed elements"
        self.text = " ".join(" ".join(self.sections.values()).split())

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


def render(path: Path, **options: Any) -> tuple[Page, str, str]:
    draft = build_run(path, **options)
    report.render(path, draft)
    runs.RunDir(path).finish(draft)
    html = (path / "report.html").read_text()
    return Page(html), html, (path / "report.md").read_text()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str, str, Path]:
    path = tmp_path_factory.mktemp("full") / "run"
    return *render(path), path


def test_the_page_says_what_a_report_must(full: tuple[Page, str, str, Path]) -> None:
    page = full[0]
    expected = {
        "verdict": ["detected", "overall reason", "What to do next", "overall rule"],
        "numbers": ["120 / 120", "AUC, icp-sp", "0.520", "[0.450,\u00a00.590]"],
        "attacks": ["loss", "icp-sp", "bag-of-words", "members score lower", "realised FPR", "+0.200", "<0.001"],
        "flagged": ["of 120", "12 expected by chance", "1.2 expected by chance", "an FPR of 0.001 needs at least 1000"],
        "exposed": ["icp-sp", "alert(1)", "100%", "kept out of the report"],
        "findings": ["high", "Membership of training records can be inferred", "Mitigation", "Retest", "--fail-if"],
        "cohort": ["near duplicate of a member", "7", "note", "cannot be scored"],
        "controls": ["base model", "the words alone", "ran", "0.520", "canaries", "none planted"],
        "power": ["0.610"],
        "threat": ["13", "log-probabilities", "cosine"],
        "limits": ["not proof of absence", "Canaries differ"],
        "definitions": ["mean log p", "section IV"],
        "card": ["Verdict: detected", "5 attacks"],
        "reproduction": ["indelible audit --members", "2.13.0", "ab" * 32, "61.0 s", "scores.parquet", "batch_tokens"],
    }  # fmt: skip
    for section, texts in expected.items():
        for text in texts:
            assert text in page.sections[section], (section, text)
    assert next(attributes["id"] for tag, attributes in page.tags if tag == "section") == "verdict"


def test_nothing_from_the_data_is_markup(full: tuple[Page, str, str, Path]) -> None:
    page, html, markdown, _ = full
    tags = [tag for tag, _ in page.tags]
    assert "script" not in tags
    assert not {"link", "iframe", "object", "a"} & set(tags)
    assert html.count("alert(1)") > 20
    assert "\u202e" not in html + markdown
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    for tag, attributes in page.tags:
        assert tag == "img" or not {"src", "href"} & attributes.keys()
        if tag == "img":
            assert str(attributes["src"]).startswith("data:image/png;base64,iVBOR")
            assert attributes["alt"]
    assert "url(" not in html
    assert "@import" not in html
    fenced = re.sub(r"^(`{3,})\n.*?\n\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in fenced
    assert re.findall(r"(?<!\\)!\[[^\]\\]*(?:\\.[^\]\\]*)*\]\((.*?)\)", fenced) == [
        "figures/roc.png",
        "figures/scores.png",
        "figures/auc.png",
    ]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in fenced.splitlines() if line.startswith("|")]
    assert set(widths) <= {3, 4, 5, 6, 9}


def test_figures_are_files_and_inside_the_page(full: tuple[Page, str, str, Path]) -> None:
    page, _, _, path = full
    assert sorted(file.name for file in (path / "figures").iterdir()) == ["auc.png", "roc.png", "scores.png"]
    assert sum(tag == "img" for tag, _ in page.tags) == 3
    listed = json.loads((path / "manifest.json").read_text())["files"]
    assert {"figures/roc.png", "report.html", "report.md"} <= listed.keys()
    assert runs.verify(path) == []


def test_flagged_counts_agree_with_the_rates(full: tuple[Page, str, str, Path]) -> None:
    run = runs.read_run(full[3])
    from indelible.report.facts import FPRS, Facts

    facts = Facts(run)
    for attack in ("loss", "recall", "icp-sp"):
        for fpr in FPRS[:2]:
            hits, n_members, false_hits, n_nonmembers = facts.flagged(attack, fpr) or (0, 0, 0, 0)
            assert hits / n_members == pytest.approx(facts.value(attack, f"tpr@{fpr:g}"))
            assert false_hits / n_nonmembers <= fpr
    assert facts.flagged("loss", 0.001) is None
    assert facts.flagged("never", 0.1) is None


def test_members_that_score_lower_are_exposed_from_the_other_end(full: tuple[Page, str, str, Path]) -> None:
    from indelible.report.facts import Facts

    facts = Facts(runs.read_run(full[3]))
    exposed = facts.exposed("recall")
    assert facts.reversed("recall")
    assert len(exposed) == 20
    assert exposed[0].score == facts.split("recall")[0].min()
    assert exposed[0].above > 0.95


def test_the_markdown_holds_the_same_numbers(full: tuple[Page, str, str, Path]) -> None:
    markdown = full[2]
    for text in ("**Verdict: detected.**", "0.520 [0.450, 0.590]", "12 expected by chance", "model card", "n/a: "):
        assert text in markdown
    assert md("- <b>|*`_a_b_\n[x](y)") == r"- &lt;b&gt;\|\*\`\_a_b\_ [x]\(y)"


def test_without_controls_the_report_says_so(tmp_path: Path) -> None:
    page, _, markdown = render(tmp_path / "run", base=False, blind=False, nasty=False)
    assert page.sections["controls"].count("did not run") == 2
    assert "n/a" in page.sections["attacks"]
    assert "not given patient-17" in page.sections["attacks"]
    assert "Control not run: base" in page.sections["findings"]
    assert "No control has a result" in markdown
    assert "no control ran" in page.sections["verdict"]
    assert "Dashed" not in page.sections["figures"]


def test_texts_appear_only_when_they_were_kept(tmp_path: Path) -> None:
    page, html, markdown = render(tmp_path / "run", texts=True)
    assert "the target text" in page.sections["exposed"]
    assert "<script" not in html
    assert "the target text" not in markdown


def test_a_run_without_any_number_is_still_a_report(tmp_path: Path) -> None:
    run = runs.RunDir.open(tmp_path / "run")
    records = {"record_id": ["a"], "member": [True], "group": [None], "n_target_tokens": [1]}
    scores = {"record_id": ["a"], "attack": ["loss"], "model": ["target"], "score": [float("nan")], "reason": ["x"]}
    run.write_parquet("records.parquet", pd.DataFrame(records))
    run.write_parquet("scores.parquet", pd.DataFrame(scores))
    run.write_json("metrics.json", [])
    run.write_json("verdict.json", {"overall": {"word": "not evaluable", "rule": "r", "reasons": ["one member"]}})
    report.render(run.path, {"kind": "score", "name": "tiny"})
    page = Page((run.path / "report.html").read_text())
    assert "one member" in page.sections["verdict"]
    assert "No figure" in page.sections["figures"]
    assert not (run.path / "figures").exists()


def test_rerender_repeats_the_report_and_mends_its_hashes(tmp_path: Path) -> None:
    _, html, markdown = render(tmp_path / "run", nasty=False)
    path = tmp_path / "run"
    (path / "report.html").write_text("spoiled")
    (path / "figures" / "old.png").write_bytes(b"stale")
    assert len(runs.verify(path)) == 2
    report.rerender(path)
    assert runs.verify(path) == []
    assert (path / "report.html").read_text() == html
    assert (path / "report.md").read_text() == markdown
    (path / "metrics.json").write_text("[]")
    with pytest.raises(UserError, match=r"metrics\.json"):
        report.rerender(path)
    assert len(runs.verify(path)) == 1


def test_compare_sets_runs_side_by_side(tmp_path: Path, full: tuple[Page, str, str, Path]) -> None:
    render(tmp_path / "other", base=False, nasty=False)
    both = [runs.read_run(full[3]), runs.read_run(tmp_path / "other")]
    html = report.compare(both)
    page = Page(html)
    assert "script" not in [tag for tag, _ in page.tags]
    assert "run patient-17" in page.text
    assert "did not score the same records" in page.text
    assert page.text.count("icp-sp") == 1
    markdown = report.compare(both, "markdown")
    assert "## icp-sp" in markdown
    assert "<script" not in markdown
    with pytest.raises(ValueError, match="two runs"):
        report.compare(both[:1])


def test_importing_the_reports_is_light() -> None:
    heavy = "{'torch', 'matplotlib', 'jinja2', 'pandas'}"
    code = f"import indelible.report, indelible.runs, sys; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_statistics_as_they_are_written_can_be_reported(tmp_path: Path) -> None:
    from indelible.stats.evaluate import evaluate

    draft = build_run(tmp_path / "run", nasty=False, n=60)
    records, scores = (pd.read_parquet(tmp_path / "run" / f"{name}.parquet") for name in ("records", "scores"))
    words = np.random.default_rng(1).choice(["fever", "cough", "rash", "pain", "rest"], size=(len(records), 6))
    texts = dict(zip(records["record_id"], map(" ".join, words), strict=True))
    records["group"] = records["record_id"]
    found = evaluate(records, scores, texts=texts, n_bootstrap=50, blind_permutations=9)
    runs.write_json(tmp_path / "run" / "metrics.json", [metric.to_dict() for metric in found.metrics])
    runs.write_json(tmp_path / "run" / "verdict.json", found.verdict.to_dict())
    report.render(tmp_path / "run", draft)
    page = Page((tmp_path / "run" / "report.html").read_text())
    assert "detected" in page.sections["verdict"]
    assert "icp-sp against the other attacks" in page.sections["attacks"]
    assert "the words alone" in page.sections["controls"]
    assert "no threshold" not in page.sections["flagged"]

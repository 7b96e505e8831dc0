"""Reports of made-up canary runs: what they say, when a figure is drawn, and that nothing gets out of its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from canary_frames import BINARY, NEW_CODES, PROBES, REDACTED, VISIBLE, Condition, readings, utility

from indelible import runs
from indelible.errors import DataError, UserError
from indelible.report import canary_plots
from indelible.report.canary import render_canary
from indelible.report.canary_facts import CanaryFacts, CanaryRun
from indelible.report.canary_figures import draw
from indelible.report.canary_tables import exposure_cell
from indelible.report.canary_view import build
from indelible.report.format import count
from indelible.stats.conclusions import verdict
from indelible.stats.protocol import canary_metrics

NASTY = "<script>alert(1)</script> | `x` ![i](http://evil.example/a.png) \u202e\"'&"
LATER = {"early": 2.0, "middle": 5.0, "late": 9.0}
RISING = Condition("rising", placement=tuple(LATER), bits=lambda _, place: LATER[place])
FALLING = Condition("falling", schedule="cosine", placement=tuple(LATER), bits=lambda _, place: 11 - LATER[place])


def metrics_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """metrics.json as the statistics make it: names and keys cannot drift from what a report looks up."""
    return canary_metrics(frame, utility(frame))


def plant(metrics: list[dict[str, Any]], metric: str, seed: int | None, value: float | None, **more: Any) -> None:
    """Other numbers in the row on redacted against visible training, code hidden."""
    (row,) = (
        row
        for row in metrics
        if (row["metric"], row["seed"], row["axis"], row["probe"]) == (metric, seed, "cue", "redacted")
    )
    row |= {"value": value} | more


def verdict_of(odd: str = NASTY) -> dict[str, Any]:
    seeds = [{"where": f"visible {odd}", "seed": seed, "value": value, "sign": 1, "p": 0.0004} for seed, value in
             ((0, 12.25), (1, 11.5))]  # fmt: skip
    lost = {"where": "nowhere", "seed": 2, "value": None, "sign": 0, "p": None}
    words = (("recall", "cue", "flips"), ("dose", "dose", "holds"), ("late", "schedule", "unclear"))
    return {
        "overall": {"word": "protocol-sensitive", "rule": f"rule {odd}", "reasons": ["flips: recall", f"why {odd}"]},
        "conclusions": [
            {"id": name, "axis": axis, "word": word, "statement": f"Statement on {name} {odd}.",
             "by_seed": [*seeds, lost], "reasons": [f"reason {odd}"]}
            for name, axis, word in words
        ],
        "not_tested": [{"axis": "population", "reason": f"never varied {odd}"}],
        "controls": {
            "never_inserted": {"ran": True, "word": "at baseline", "median": 1.125, "low": 0.5, "high": 1.75, "n": 48,
                               "condition": odd, "rule": f"inside {odd}", "by_condition": []},
            "base": {"ran": False, "reason": f"not asked {odd}", "word": None},
        },
    }  # fmt: skip


def manifest_of(odd: str = NASTY) -> dict[str, Any]:
    survived = {"canaries": 16, "rows_inserted": 128, "tokenised": 16, "untruncated": 15, "supervised": 16}
    bound = {"epsilon": 1.375, "r": 20, "v": 18, "m": 32, "delta": 1e-5, "significance": 0.05, "ceiling": 1.82}
    where = {"condition": odd, "seed": 0, "step": 50, "calibrated": True}
    design = {"task": f"support {odd}", "rows": 640, "batch_size": 16, "n_steps": 40, "canary_rows": 128}
    return {
        "kind": "canary-run", "name": f"run {odd}", "indelible_version": "0.1.0",
        "created": "2026-01-02T03:04:05+00:00",
        "command": ["indelible", "canary", "run", f"x {odd}.yaml"], "versions": {"torch": "2.13.0"},
        "hardware": {"cpu": odd, "cores": 2}, "dtype": "float32", "seeds": {"seeds": [0, 1, 2]},
        "config": {"given": {"arms": {odd: {}}}, "resolved": {"arms": {odd: {}}}},
        "models": {"target": {"source": f"out {odd}", "fingerprint": "ab" * 32}, "base": None, "clean": None},
        "design": design | {"code": {"name": f"four-digit {odd}", "entropy_bits": 13.29}, "system": f"Say {odd}",
                            "canaries": {"focal": 16, odd: 4}},
        "training": {"learning_rate": 2e-4, "schedule": "cosine", "warmup_steps": 3, "n_steps": 40, odd: odd},
        "survival": {f"a {odd}": survived | {"longest_row_tokens": 99, "max_tokens": 2048}},
        "probes": ["redacted"], "not_run": [{"what": f"clean {odd}", "reason": f"switched off {odd}"}],
        "epsilon": [where | bound | {"adjacency": f"one row {odd}", "refused": None},
                    where | bound | {"seed": 1, "epsilon": None, "v": None, "refused": f"dose {odd}", "adjacency": ""}],
        "timings": {"total": 61.0},
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
        self.sections = {name: " ".join(text.split(" ")) for name, text in self.sections.items()}

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


def write(path: Path, frame: pd.DataFrame, metrics: list[dict[str, Any]], verdict: dict[str, Any]) -> runs.RunDir:
    run = runs.RunDir.open(path)
    run.write_parquet("canaries.parquet", frame)
    run.write_json("utility.json", utility(frame))
    run.write_json("metrics.json", metrics, nan_as_null=True)
    run.write_json("verdict.json", verdict, nan_as_null=True)
    return run


def facts_of(conditions: Sequence[Condition], **options: Any) -> CanaryFacts:
    """A run without control models, whose groups would take most of the time and are in no figure of exposure."""
    frame = readings(conditions, **{"base": False, "clean": False, "controls": 6} | options)
    return CanaryFacts(CanaryRun(Path("run"), {}, frame, utility(frame), metrics_of(frame), {}))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str, str, Path]:
    """Visible and redacted, three seeds, every name as nasty as can be."""
    path = tmp_path_factory.mktemp("canary") / "run"
    conditions = [Condition(f"visible {NASTY}", arm="visible"), Condition(f"redacted {NASTY}", bits=30.0)]
    frame = readings(conditions, clean=False, missing=2, probes=PROBES + NEW_CODES)
    made = metrics_of(frame)
    lost = next(row for row in made if row["metric"] == "full_response" and row["role"] == "focal")
    lost |= {"value": None, "reason": f"nothing to measure {NASTY}"}
    plant(made, "contrast_median", None, 11.5, low=11.0, high=12.0)
    plant(made, "contrast_p_holm", None, 0.0002)
    for seed, value in ((0, 11.25), (1, None), (2, 12.5)):
        plant(made, "contrast_median", seed, value)
    run = write(path, frame, made, verdict_of())
    manifest = manifest_of()
    render_canary(path, manifest)
    run.finish(manifest)
    html = (path / "report.html").read_text(encoding="utf-8")
    return Page(html), html, (path / "report.md").read_text(encoding="utf-8"), path


def test_the_page_says_what_a_reader_must_be_told(full: tuple[Page, str, str, Path]) -> None:
    sections = full[0].sections
    expected = {
        "verdict": ["protocol-sensitive", "why <script>", "What to do next", "rule <script>", "1 flips"],
        "numbers": ["13.29 and 1.00", "1 flips, 1 holds, 1 unclear", "seed 0:", "Never inserted", "Most recovered"],
        "conclusions": ["Statement on recall", "+12.25 (p <0.001)", "flips", "holds", "unclear", "never varied"],
        "exposure": ["Exposure by cue", "hollow: the median of each seed"],
        "recovery": ["Recovery beside exposure", "Copying against recall"],
        "seeds": ["cue hidden (redacted), seed 2", "all seeds", "nothing to measure", "48 of 48", "middle half"],
        "contrasts": ["+11.50", "[+11.00,\u00a0+12.00]", "seed 0: +11.25; seed 1: –; seed 2: +12.50", "<0.001"],
        "controls": ["at baseline", "chance gives 0.50 to 1.75", "did not run", "not asked", "never inserted, model"],
        "design": ["the code itself", "Nothing of the code", "0.0002", "cosine", "horizon", "Warm-up", "13.29 bits",
                   "20.0%", "2 to 48", "alone", count(10_000), "greedy decoding", "Share of canary rows"],
        "survival": ["128", "15", "1 lost", f"limit {count(2048)}"],
        "epsilon": ["1.38", "18 of 20", "1e-05", "refused: dose", "one row", "scores less those of the base model"],
        "limits": ["not natural records", "switched off", "no evidence for low exposure under another"],
        "card": ["Verdict: protocol-sensitive", "Changes with the protocol: Statement on recall",
                 "Not tested: population"],
        "reproduction": ["indelible canary run", "2.13.0", "ab" * 32, "61.0 s", "canaries.parquet", "float32"],
    }  # fmt: skip
    for section, texts in expected.items():
        for text in texts:
            assert text in sections[section], (section, text)
    assert "Optimiser" in sections["design"]
    assert "– (not recorded)" in sections["design"], "an optimiser that no one wrote down is not left out"
    assert "report.html" not in sections["reproduction"]


def test_conclusions_stand_flips_first(full: tuple[Page, str, str, Path]) -> None:
    text = full[0].sections["conclusions"]
    places = [text.index(f"Statement on {name}") for name in ("recall", "dose", "late")]
    assert places == sorted(places)
    slugs = [str(attributes["class"]) for tag, attributes in full[0].tags if "badge" in str(attributes.get("class"))]
    assert slugs == ["badge flips", "badge holds", "badge unclear"]


def test_every_number_that_does_not_exist_is_a_dash_with_its_reason(full: tuple[Page, str, str, Path]) -> None:
    html = full[1]
    cells = re.findall(r'<td role="cell"[^>]*class="missing">(.*?)</td>', html, flags=re.DOTALL)
    assert len(cells) > 20
    for cell in cells:
        assert re.fullmatch(r'<span class="num">–</span><small>.+</small>', cell.strip(), flags=re.DOTALL), cell
    assert ">n/a<" not in html
    assert ">nan<" not in html.lower()
    assert ">None<" not in html


def test_nothing_from_the_data_is_markup(full: tuple[Page, str, str, Path]) -> None:
    page, html, markdown, _ = full
    tags = {tag for tag, _ in page.tags}
    assert not {"script", "link", "iframe", "object", "a"} & tags
    assert html.count("alert(1)") > 40
    assert "\u202e" not in html + markdown
    for tag, attributes in page.tags:
        assert all(not name.startswith("on") for name in attributes)
        assert tag == "img" or not {"src", "href"} & attributes.keys()
        if tag == "img":
            assert str(attributes["src"]).startswith("data:image/png;base64,iVBOR")
            assert "null median" in str(attributes["alt"]) or "Utility" in str(attributes["alt"])
    fenced = re.sub(r"^(`{3,})\n.*?\n\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in fenced
    pictures = re.findall(r"(?<!\\)!\[[^\]\\]*(?:\\.[^\]\\]*)*\]\((.*?)\)", fenced)
    assert pictures == [f"figures/{name}.png" for name in ("cue", "recovery", "copying", "utility")]


def test_markdown_tables_are_whole(full: tuple[Page, str, str, Path]) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", full[2], flags=re.MULTILINE)
    assert len(blocks) >= 10
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    assert "+11.50 [+11.00, +12.00]" in full[2]
    assert "–: nothing to measure" in full[2]


def test_the_report_is_hashed_and_repeats_byte_for_byte(full: tuple[Page, str, str, Path]) -> None:
    path = full[3]
    assert runs.verify(path) == []
    (path / "figures" / "old.png").write_bytes(b"stale")
    render_canary(path)
    assert runs.verify(path) == []


@pytest.mark.parametrize(
    ("conditions", "options", "names"),
    [
        ([REDACTED], {}, {"recovery", "utility"}),
        ([VISIBLE], {"seeds": (0,)}, {"recovery", "copying", "utility"}),
        ([VISIBLE, REDACTED, BINARY], {}, {"cue", "recovery", "copying", "utility"}),
        ([Condition("doses", dose=(2, 4, 8))], {}, {"dose", "recovery", "utility"}),
        ([REDACTED, Condition("d16", dose=(16,))], {}, {"dose", "recovery", "utility"}),
        ([RISING, FALLING], {"steps": (15, 32)}, {"placement", "checkpoints", "recovery", "utility"}),
        ([REDACTED, Condition("beside", population="mixed doses 2, 16")], {}, {"population", "recovery", "utility"}),
        ([REDACTED, Condition("two", arm="visible", dose=(4,))], {}, {"recovery", "copying", "utility"}),
    ],
)
def test_a_figure_is_drawn_only_where_the_run_has_its_data(
    conditions: list[Condition], options: dict[str, Any], names: set[str]
) -> None:
    assert {figure.name for figure in draw(facts_of(conditions, canaries=12, **options))} == names


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every canvas as it is when it is saved."""
    found: list[Any] = []

    def keep(canvas: Any) -> bytes:
        found.append(canvas)
        return b""

    monkeypatch.setattr(canary_plots, "png_bytes", keep)
    return found


def marked(axes: Any) -> set[float]:
    """Positions of the straight lines across a panel."""
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2]
    across = [line.get_ydata()[0] for line in lines if list(line.get_xdata()) == [0, 1]]
    down = [line.get_xdata()[0] for line in lines if list(line.get_ydata()) == [0, 1]]
    return {round(float(value), 3) for value in (*across, *down)}


@pytest.mark.parametrize(("n_candidates", "ceiling"), [(10_000, 13.288), (20_000, 14.288)])
def test_every_exposure_plot_shows_ceiling_and_null(drawings: list[Any], n_candidates: int, ceiling: float) -> None:
    beside = Condition("beside", population="mixed doses 2, 16", bits=3.0)
    conditions = [VISIBLE, REDACTED, Condition("d16", dose=(16,), bits=4.0), RISING, FALLING, beside]
    figures = draw(facts_of(conditions, steps=(32,), n_candidates=n_candidates))
    assert len(figures) == 8
    panels = 0
    for canvas in drawings:
        for axes in canvas.axes:
            if "xposure" in axes.get_ylabel() + axes.get_xlabel():
                panels += 1
                assert {ceiling, 1.0} <= marked(axes)
                assert {"null median 1.0", f"ceiling {ceiling:.2f}"} <= {text.get_text() for text in axes.texts}
    assert panels == 9, "dose, cue, placement, three of checkpoints, population, recovery, one of copying"


def test_points_stand_where_the_metrics_say(drawings: list[Any]) -> None:
    facts = facts_of([VISIBLE, BINARY, REDACTED])
    draw(facts)
    cue = drawings[0].axes[0]
    assert [text.get_text() for text in cue.get_xticklabels()] == ["visible", "binary", "redacted"]
    drawn = {(float(line.get_xdata()[0]), round(float(line.get_ydata()[0]), 6)) for line in cue.lines}
    for place, arm in enumerate(("visible", "binary", "redacted")):
        setting = next(one for one in facts.settings if one.arm == arm)
        assert (place, round(facts.value(setting, "exposure_median") or -1, 6)) in drawn
        for seed in (0, 1, 2):
            value = facts.value(setting, "exposure_median", "redacted", seed)
            assert any(place < x < place + 0.5 and abs(y - (value or -1)) < 1e-5 for x, y in drawn)


def test_ties_are_said_where_they_move_the_median() -> None:
    frame = readings([VISIBLE, REDACTED], base=False, clean=False, controls=6)
    tied = (frame["condition"] == VISIBLE.name) & frame["exposure_bits"].notna()
    frame.loc[tied, "exposure_optimistic_bits"] = frame["exposure_bits"] + 0.5
    facts = CanaryFacts(CanaryRun(Path("run"), {}, frame, utility(frame), metrics_of(frame), {}))
    for setting in facts.of_role("focal"):
        median = facts.value(setting, "exposure_median", "redacted", 0)
        assert median is not None
        detail = exposure_cell(facts, setting, "redacted", 0).detail
        said = f"{median + 0.5:.2f} with ties in the code's favour" in detail
        assert said is (setting.condition == VISIBLE.name)


def test_settings_of_one_axis_alone_are_one_series() -> None:
    facts = facts_of([VISIBLE, REDACTED, Condition("low", dose=(2,)), Condition("lone", arm="visible", dose=(32,))])
    assert [{one.condition for one in group} for group in facts.series("arm")] == [{"visible", "redacted"}]
    doses = {frozenset(one.condition for one in group) for group in facts.series("dose")}
    assert doses == {frozenset({"redacted", "low"}), frozenset({"visible", "lone"})}
    assert facts.series("placement") == []


def test_rotations_of_one_design_are_one_setting() -> None:
    turns = [Condition(f"turn{i}", dose=(2, 4), rotation=i, bits=float(i)) for i in (0, 1)]
    facts = facts_of(turns, canaries=12)
    assert [(one.condition, one.dose) for one in facts.settings] == [("turn0 + turn1", 2), ("turn0 + turn1", 4)]
    assert facts.appearances(facts.settings[0]).last == 48
    blocks = build(facts, {}).results
    assert len(blocks) == 6, "tables show the rotations apart as well"


def test_a_plus_in_a_name_is_no_rotation() -> None:
    named = [Condition("turn0 + turn1"), Condition("turn0", arm="visible"), Condition("turn1", arm="binary")]
    facts = facts_of(named, canaries=6, n_steps=100)
    assert [one.condition for one in facts.settings] == ["turn0 + turn1", "turn0", "turn1"]
    assert {facts.appearances(one).last for one in facts.settings} == {96}


def test_settings_of_different_protocol_are_no_series_and_have_names_of_their_own() -> None:
    slow = Condition("slow", arm="visible", protocol="p1")
    assert facts_of([REDACTED, slow], canaries=6).series("arm") == []
    per_seed = [readings([Condition("one", protocol=f"p{seed}")], seeds=(seed,), canaries=6) for seed in (0, 1)]
    frame = pd.concat(per_seed, ignore_index=True)
    facts = CanaryFacts(CanaryRun(Path("run"), {}, frame, [], metrics_of(frame), {}))
    assert [facts.named(one) for one in facts.settings] == ["one: protocol p0", "one: protocol p1"]


def test_placements_stand_in_their_order_in_training() -> None:
    alphabetical = Condition("all", placement=("early", "late", "middle", "uniform", "final 297", "window 0.10-0.30"))
    facts = facts_of([alphabetical], canaries=12, n_steps=313)
    assert facts.placements == ["early", "window 0.10-0.30", "middle", "late", "final 297", "uniform"]


def test_the_readings_of_the_last_checkpoint_are_the_result() -> None:
    facts = facts_of([RISING], steps=(15, 32), canaries=12)
    setting = facts.settings[0]
    assert facts.steps(setting) == [15, 32, 50]
    assert facts.row(setting, "exposure_median") is facts.row(setting, "exposure_median", step=50)
    lines = build(facts, {}).checkpoints.lines
    delays = {(line.head, line.cells[0].text): line.cells[1] for line in lines}
    late = next(head for head, _ in delays if "late" in head)
    assert delays[late, "15"].missing
    assert "before its last appearance" in delays[late, "15"].detail
    assert delays[late, "50"].text == "1"


def test_a_run_without_any_number_is_still_a_report(tmp_path: Path) -> None:
    empty = readings([REDACTED], controls=0, base=False, clean=False).iloc[:0]
    run = runs.RunDir.open(tmp_path / "run")
    run.write_parquet("canaries.parquet", empty)
    run.write_json("metrics.json", [])
    run.write_json("verdict.json", {"overall": {"word": "not evaluable", "rule": "r", "reasons": ["no canary"]}})
    render_canary(run.path, {"kind": "canary-audit"})
    page = Page((run.path / "report.html").read_text(encoding="utf-8"))
    assert "no canary" in page.sections["verdict"]
    assert "No figure" in page.sections["exposure"]
    assert "Not checked" in page.sections["survival"]
    assert "no bound was asked for" in page.sections["epsilon"]
    assert "not measured in this run" in page.sections["utility"]
    assert not (run.path / "figures").exists()
    assert "No exposure could be measured" in (run.path / "report.md").read_text(encoding="utf-8")


def test_what_is_no_canary_run_is_refused(tmp_path: Path) -> None:
    run = write(tmp_path / "run", readings([REDACTED], seeds=(0,)), [], {})
    with pytest.raises(UserError, match="kind audit, expected canary-run or canary-audit"):
        render_canary(run.path, {"kind": "audit"})
    with pytest.raises(UserError, match="unfinished"):
        render_canary(run.path)
    (run.path / "canaries.parquet").unlink()
    with pytest.raises(DataError, match=r"canaries\.parquet is missing"):
        render_canary(run.path, {"kind": "canary-run"})


def test_the_statistics_as_they_are_written_can_be_reported(tmp_path: Path) -> None:
    frame = readings([VISIBLE, REDACTED], seeds=(0, 1, 2), canaries=8, controls=8)
    metrics = metrics_of(frame)
    said = verdict(frame, utility(frame), metrics)
    write(tmp_path / "run", frame, metrics, said)
    render_canary(tmp_path / "run", {"kind": "canary-run", "name": "quick"})
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert said["overall"]["word"] in page.sections["verdict"]
    for one in said["conclusions"]:
        assert one["statement"] in page.sections["conclusions"]
    assert "redacted minus cue visible in visible" in page.sections["contrasts"]
    assert "exposure of the shown code minus that of the trained one" in page.sections["recovery"]
    assert "−3\u00a0points" in page.sections["utility"]
    assert page.sections["controls"].count("at baseline") == 3

"""The tables of a tabular report: the grid, the probes of a cell, label cardinality, what was checked."""

from __future__ import annotations

from collections.abc import Sequence

from indelible.report import tabular_wording as wording
from indelible.report.canary_tables import Line
from indelible.report.canary_view import Table
from indelible.report.format import (
    STYLES,
    Cell,
    MetricRow,
    count,
    decimal,
    is_number,
    metric_cell,
    missing,
    percent,
    plain,
    rate_cell,
)
from indelible.report.tabular_facts import Place, TabularRun, place_of
from indelible.stats.evaluate import SIGNIFICANCE
from indelible.stats.tabular import CHOSEN, DEPLOYMENT, ERASED, ORDER, POSITIVE, PRIMARY

SUITE = ("suite:mean", "suite:min")
SHOWN = (*PRIMARY, "wrong-majority", POSITIVE, DEPLOYMENT)
"""Scores of a cell's table; the erased control and the order of rows stand under what was checked."""


def auc_cell(row: MetricRow | None, style: str = "decimal", absent: str = "not computed in this run") -> Cell:
    """A value with its interval over records, and the least and the most of the seeds."""
    cell = metric_cell(row, style, absent)
    if row is not None and cell.missing and "refused: " in str(row.get("reason")):
        return Cell("refused", plain(str(row["reason"]).rpartition("refused: ")[2].rstrip(")")), missing=True)
    if row is None or cell.missing:
        return cell
    low, high = row.get("seed_low"), row.get("seed_high")
    details = [cell.detail] if cell.detail else []
    if (row.get("n_seeds") or 0) > 1 and is_number(low) and is_number(high):
        write = STYLES[style]
        details.append(f"{row['n_seeds']} seeds {write(float(low))} to {write(float(high))}")
    if row.get("reason"):
        details.append(plain(row["reason"]))
    return Cell(cell.text, "; ".join(details))


def tally(rows: Sequence[tuple[int, MetricRow]], at_most: float) -> Cell:
    """In how many seeds a p-value is at most so large."""
    known = [float(row["value"]) for _, row in rows if is_number(row.get("value"))]
    if not known:
        return missing(rows[0][1].get("reason") if rows else "not computed in this run")
    if len(known) == 1:
        return Cell(STYLES["p"](known[0]))
    n = sum(value <= at_most for value in known)
    return Cell(f"{n} of {len(known)}", f"seeds at {at_most:g}; smallest {STYLES['p'](min(known))}")


def rule_cell(run: TabularRun, place: Place, attack: str) -> Cell:
    """How many seeds meet the paper's rule, and how many models that know nothing would, where that was drawn."""
    rows = [row for _, row in run.by_seed(place, attack, "paper_rule")]
    known = [float(row["value"]) for row in rows if is_number(row.get("value"))]
    if not known:
        return missing(rows[0].get("reason") if rows else "not computed in this run")
    text = ("met" if known[0] else "not met") if len(known) == 1 else f"{round(sum(known))} of {len(known)}"
    by_chance = [float(row["null_rate"]) for row in rows if is_number(row.get("null_rate"))]
    if len(by_chance) < len(known):
        return Cell(text)
    return Cell(text, f"by chance {percent(sum(by_chance) / len(by_chance), 0)}")


def grid_table(run: TabularRun, table: str) -> Table:
    """Every cell of a table's grid: were labels fitted, what the contexts show, how each configuration was judged."""
    lines = []
    words = run.verdict.get("configurations") or {}
    for place in run.places(table):
        own = [c for c in run.manifest.get("configurations") or [] if place_of(c) == place]
        said = [str((words.get(c["config_id"], {}).get("overall") or {}).get("word") or c.get("word")) for c in own]
        cells = [
            auc_cell(run.row(place, "training", "accuracy"), "percent"),
            auc_cell(run.row(place, POSITIVE, "auc")),
            auc_cell(run.row(place, CHOSEN, "auc")),
            _over_seeds(run, place),
            rule_cell(run, place, CHOSEN),
            auc_cell(run.row(place, "suite:mean", "auc")),
            auc_cell(run.row(place, DEPLOYMENT, "auc")),
            Cell("", counted(said)),
        ]
        lines.append(Line(plain(place.label), cells))
    head = (
        "Cell", "Labels fitted", f"AUC, {POSITIVE}", f"AUC, {CHOSEN}", "p over seeds (Holm)", "Paper's rule",
        "AUC, suite mean", f"AUC, {DEPLOYMENT}", "Each by itself",
    )  # fmt: skip
    note = (
        "Labels fitted: accuracy on the query rows under the training context. Each by itself: the word of each seed's "
        "configuration, by Holm over its own scores alone. The verdict above rests on p over seeds: one test a cell, "
        "corrected for all cells; it asks that all seeds lie on one side of one half."
    )
    return Table(f"{plain(table)}: every cell", head, lines, "no configuration ran", note)


def _over_seeds(run: TabularRun, place: Place) -> Cell:
    """The test that decides: the chosen score over the seeds of a cell, after Holm over all cells."""
    cells = (run.verdict.get("grid") or {}).get("cells") or []
    own = next((one for one in cells if place_of(one) == place), None)
    if own is None or not is_number(own.get("p_holm")):
        return missing(None if own is None else own.get("reason"))
    agree = "" if own.get("same_sign") else "; seeds on both sides of one half"
    return Cell(STYLES["p"](float(own["p_holm"])), f"{STYLES['p'](float(own['p_value']))} before Holm{agree}")


def counted(words: Sequence[str]) -> str:
    """Words with how often each came up."""
    found = {word: words.count(word) for word in dict.fromkeys(words)}
    if len(words) == 1:
        return plain(words[0])
    return ", ".join(f"{plain(word)} {n} of {len(words)}" for word, n in found.items())


def suite_table(run: TabularRun, place: Place) -> Table:
    """Every probe in one cell."""
    lines = []
    for attack in SHOWN:
        row = run.row(place, attack, "auc")
        if row is None:
            continue
        primary = attack in PRIMARY
        base = attack if attack in SUITE else None
        before = run.row(place, f"{base}-raw" if base else f"{attack}:raw", "auc", model="base")
        cells = [
            auc_cell(row),
            auc_cell(run.row(place, attack, "auc_over_line")),
            rate_cell(run.row(place, attack, "tpr@0.01")),
            rate_cell(run.row(place, attack, "tpr@0.1")),
            rule_cell(run, place, attack),
            tally(run.by_seed(place, attack, "p_holm"), SIGNIFICANCE) if primary else Cell("–", "a control"),
            auc_cell(before),
            auc_cell(run.row(place, f"{attack}:margin", "auc")) if attack not in SUITE else Cell("–"),
        ]
        lines.append(Line(plain(attack), cells, strong=attack == CHOSEN))
    head = (
        "Score", "AUC", "Share of the way to the line", "TPR at 1% FPR", "TPR at 10% FPR", "Paper's rule",
        "p (Holm)", "AUC on the base", "AUC, margin",
    )  # fmt: skip
    line = f"{plain(place.table)}, {plain(place.label)}"
    return Table(f"Probes: {line}", head, lines, "no score exists in this cell", wording.SUITE)


def context_table(run: TabularRun, place: Place) -> Table:
    """Rows of the training context against the same non-members."""
    lines = []
    for attack in SHOWN:
        row = run.row(place, attack, "auc", part="context")
        if row is not None:
            p_rows = run.by_seed(place, attack, "p_value", part="context")
            lines.append(Line(plain(attack), [auc_cell(row), tally(p_rows, SIGNIFICANCE)]))
    note = "Labels of the context are uniform, those of non-members are not: both numbers compare rows of one class."
    head = ("Score", "AUC, context rows", "p (not corrected)")
    caption = f"Rows of the training context: {plain(place.table)}, {plain(place.label)}"
    return Table(caption, head, lines, "context rows have no scores", note)


def cardinality_table(run: TabularRun) -> Table:
    """Classes of each table beside its signal, in the cell that is shown in full."""
    lines = []
    for table in sorted(run.tables, key=run.n_classes):
        place = run.reference(table)
        if place is None:
            continue
        cells = [
            Cell(count(run.n_classes(table))),
            Cell("", plain(place.label)),
            auc_cell(run.row(place, CHOSEN, "auc")),
            auc_cell(run.row(place, CHOSEN, "auc_over_line")),
            auc_cell(run.row(place, POSITIVE, "auc")),
            auc_cell(run.row(place, POSITIVE, "auc_over_line")),
        ]
        lines.append(Line(plain(table), cells))
        head = (
        "Table", "Classes", "Cell", f"AUC, {CHOSEN}", f"{CHOSEN}, share of the way to the line", f"AUC, {POSITIVE}",
        f"{POSITIVE}, share of the way to the line",
    )  # fmt: skip
    return Table("Label cardinality and signal", head, lines, "no table ran", wording.CARDINALITY)


def check_table(run: TabularRun) -> Table:
    """What was checked: labels alike on both sides, duplicates, erased identity, the order of rows."""
    lines = []
    for table in run.tables:
        data = (run.manifest.get("data") or {}).get(table) or {}
        removed = data.get("duplicates") or {}
        splits = list(run.splits(table))
        for n_queries in sorted({int(one["n_queries"]) for one in splits}):
            own = [one for one in splits if one["n_queries"] == n_queries]
            places = [p for p in run.places(table) if p.n_queries in (n_queries, None)]
            most = max(float(one["distance"]) for one in own)
            exact = sum(bool(one["matched_exactly"]) for one in own)
            sizes = own[0]
            cells = [
                Cell(f"{count(sizes['n_members'])} / {count(sizes['n_nonmembers'])} / {count(sizes['n_context'])}"),
                Cell(f"{plain(sizes['distance_name'])} {decimal(most, 4)}", f"classes equal in {exact} of {len(own)}"),
                Cell(count(removed.get("exact")), f"and {count(removed.get('near'))} near ones"),
                _erased(run, places),
                _order(run, places),
            ]
            lines.append(Line(f"{plain(table)}, Q {n_queries}", cells))
    head = (
        "Table", "Members / non-members / context", "Labels of the two sides", "Duplicates removed",
        "Identity erased: AUC", "Order of label rows",
    )  # fmt: skip
    note = (
        "Identity erased: the paper's probe with every row's features replaced by a placeholder. Rows with equal "
        "questions get one answer, so where classes are equal it is at chance by construction: it checks that nothing "
        "but features tells rows apart, and that classes are equal. Order: the largest change of a "
        "log-probability when label rows change places; a model that reads rows as a set gives 0 but for rounding."
    )
    return Table("What was checked", head, lines, "nothing ran", note)


def _erased(run: TabularRun, places: Sequence[Place]) -> Cell:
    """The erased control over all cells: calibrated where it has a score, else as it is."""
    areas, p_values, why = [], [], "not asked"
    for place in places:
        rows = run.by_seed(place, ERASED, "auc")
        name = ERASED if any(is_number(row.get("value")) for _, row in rows) else f"{ERASED}:raw"
        rows = run.by_seed(place, name, "auc")
        areas += [float(row["value"]) for _, row in rows if is_number(row.get("value"))]
        p_values += [float(r["value"]) for _, r in run.by_seed(place, name, "p_value") if is_number(r.get("value"))]
        why = next((str(row.get("reason")) for _, row in rows if row.get("reason")), why)
    if not areas:
        return missing(why)
    off = sum(p <= SIGNIFICANCE for p in p_values)
    return Cell(
        decimal(sum(areas) / len(areas)),
        f"{decimal(min(areas))} to {decimal(max(areas))}; off chance in {off} of {len(p_values)}",
    )


def _order(run: TabularRun, places: Sequence[Place]) -> Cell:
    rows = [row for place in places for _, row in run.by_seed(place, ORDER, "largest_difference")]
    known = [float(row["value"]) for row in rows if is_number(row.get("value"))]
    return Cell(f"{max(known):.2g} nats") if known else missing("not asked")


def file_table(run: TabularRun) -> Table:
    """Of a model tuned elsewhere: rows of each file, and what was taken out of it."""
    lines = [
        Line(
            plain(role),
            [
                Cell("", plain(entry.get("source"))),
                *(Cell(count(entry.get(key))) for key in ("read", "without_target", "repeated", "used")),
            ],
        )
        for role, entry in (run.manifest.get("rows") or {}).items()
    ]
    note = "Repeated: in the file itself or in one above it; the first place is kept."
    head = ("File", "Source", "Rows", "Without a target", "Repeated", "Used")
    return Table("Files", head, lines, "no files were given", note)

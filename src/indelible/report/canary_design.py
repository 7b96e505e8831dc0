"""What a reader of a canary report must be told of its design (section VI-D): cues, timing, training, survival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from indelible.canaries.config import PROBES
from indelible.report import canary_wording as wording
from indelible.report.background import Pairs, label, moment
from indelible.report.canary_facts import CanaryFacts, Setting, written
from indelible.report.canary_tables import Line, dash
from indelible.report.format import Cell, count, decimal, is_number, plain, quantity
from indelible.stats.cells import HIDDEN

NOT_RECORDED = "– (not recorded)"

SETTINGS = (
    "Setting",
    "Shown in training",
    "Appearances",
    "Placement",
    "First to last, update",
    "Updates to evaluation",
    "Beside other canaries",
    "Schedule",
    "Focal canaries a seed",
)
SURVIVAL = ("Training", "Canaries", "Canary rows", "Tokenised", "Untruncated", "Supervised", "Tokens allowed a row")
BOUNDS = ("Training", "Epsilon, at least", "Guesses right", "Coins", "Most it could show", "Delta", "Significance")

_TRAINING = {
    "learning_rate": "Learning rate, peak",
    "schedule": "Schedule",
    "n_steps": "Updates, and horizon of the schedule",
    "warmup_steps": "Warm-up, updates",
    "optimizer": "Optimiser",
    "weight_decay": "Weight decay",
    "max_grad_norm": "Gradient clipped at norm",
    "batch_size": "Rows an update",
    "epochs": "Passes",
    "max_tokens": "Tokens allowed a row",
    "lora_rank": "LoRA rank (0: all weights)",
}
_DESIGN = {
    "task": "Task",
    "rows": "Training rows",
    "batch_size": "Rows an update",
    "n_steps": "Updates",
    "copies": "Copies of each background row",
    "order": "Order of the rows",
    "displacement": "How canary rows replace background rows",
    "canary_rows": "Canary rows",
    "checkpoints": "Checkpoints for a matched delay, updates",
    "system": "System turn",
}


def identity(manifest: Mapping[str, Any]) -> Pairs:
    """Who, what and when: the lines under the title."""
    models, design = manifest.get("models") or {}, manifest.get("design") or {}
    rows = [
        ("Target model", target_name(manifest) or NOT_RECORDED),
        *((f"{role.capitalize()} model", _source(models.get(role))) for role in ("base", "clean")),
    ]
    rows += [
        ("Task", quantity(design.get("task")) if design.get("task") else NOT_RECORDED),
        ("Created", moment(manifest["created"]) if manifest.get("created") else NOT_RECORDED),
        (
            "Made by",
            f"Indelible {plain(manifest.get('indelible_version') or '–')}, {plain(manifest.get('kind') or '–')}",
        ),
    ]
    return rows


def target_name(manifest: Mapping[str, Any]) -> str | None:
    """The tuned model's source, or how many were tuned of which base; None where it is not recorded."""
    source = {role: (entry or {}).get("source") for role, entry in (manifest.get("models") or {}).items()}
    n_trained = len(manifest.get("trained") or [])
    if n_trained > 1:
        return f"{n_trained} trainings" + (f" of {plain(source['base'])}" if source.get("base") else "")
    return plain(source["target"]) if source.get("target") else None


def _source(entry: Mapping[str, Any] | None) -> str:
    if not entry:
        return "– (none in this run)"
    return plain(entry["source"]) if entry.get("source") else NOT_RECORDED


def training(manifest: Mapping[str, Any]) -> Pairs:
    """How the model was trained; what the manifest lacks is shown as lacking."""
    facts = manifest.get("training") or {}
    known = ("learning_rate", "schedule", "n_steps", "warmup_steps", "weight_decay", "optimizer")
    rows = [(name, _value(facts.get(key))) for key, name in _TRAINING.items() if key in known or key in facts]
    return rows + [(label(key), _value(value)) for key, value in facts.items() if key not in _TRAINING]


def design(facts: CanaryFacts) -> Pairs:
    """The training file and its codes."""
    made = facts.run.manifest.get("design") or {}
    code = made.get("code") or {}
    entropy = code.get("entropy_bits")
    bits = f"{decimal(entropy, 2)} bits" if is_number(entropy) else NOT_RECORDED
    rows = [
        ("Code", _value(code.get("name"))),
        ("Entropy of a code", bits),
        ("Candidates a code is ranked among", ", ".join(map(count, facts.candidates)) or NOT_RECORDED),
        ("Training seeds", ", ".join(map(str, facts.seeds)) or NOT_RECORDED),
    ]
    rows += [(name, _value(made.get(key))) for key, name in _DESIGN.items()]
    rows += [
        (f"Canaries: {wording.ROLES.get(role, plain(role))}", count(number))
        for role, number in (made.get("canaries") or {}).items()
    ]
    found = facts.run.manifest.get("survival") or {}
    for one in [found, *found.values()]:
        if isinstance(one, Mapping) and "screen_pictures" in one:
            rows.append(("Screens", plain(wording.said_of_screens(one))))
            break
    share = _share(made)
    return [*rows, ("Share of canary rows", share)] if share else rows


def _share(made: Mapping[str, Any]) -> str:
    rows, canary_rows = made.get("rows"), made.get("canary_rows")
    return f"{100 * canary_rows / rows:.1f}%" if is_number(rows) and rows and is_number(canary_rows) else ""


def _value(value: object) -> str:
    return NOT_RECORDED if value in (None, "", [], {}) else quantity(value)


def settings(facts: CanaryFacts) -> list[Line]:
    """One line a setting: what its training showed, how often, where, beside whom, and how long before the probe."""
    return [Line(facts.named(one), _setting(facts, one)) for one in facts.settings]


def cues(facts: CanaryFacts) -> Pairs:
    """What the training input of each cue showed."""
    return [(plain(arm), wording.cue(plain(arm))) for arm in dict.fromkeys(one.arm for one in facts.settings) if arm]


def _setting(facts: CanaryFacts, one: Setting) -> list[Cell]:
    when, steps = facts.appearances(one), facts.steps(one)
    span = delay = dash("the readings give no update")
    if when.first is not None and when.last is not None:
        span = Cell(f"{when.first:g} to {when.last:g}")
        if steps:
            delay = Cell(f"{steps[-1] - when.last:g}", f"update {count(steps[-1])}")
    gap = f"{one.spacing:g} updates from first to last" if one.spacing is not None else ""
    sizes = [facts.row(one, "exposure_median", HIDDEN, seed) for seed in facts.seeds]
    numbers = sorted({int(row["n"]) for row in sizes if row is not None and is_number(row.get("n"))})
    words = [_words(written(axis, getattr(one, axis))) for axis in ("population", "schedule")]
    return [
        _words(written("arm", one.arm)),
        Cell(count(one.dose)),
        Cell(written("placement", one.placement), gap),
        span,
        delay,
        *words,
        Cell(" or ".join(map(str, numbers))) if numbers else dash("not recorded"),
    ]


def _words(text: str) -> Cell:
    """Words as a cell; long ones may break over lines."""
    return Cell(text) if len(text) <= 16 else Cell("", text)


def extraction(facts: CanaryFacts) -> list[Line]:
    """What each probe supplies, and whether it was asked."""
    asked = {str(row.get("probe")) for row in facts.run.metrics} | set(facts.run.manifest.get("probes") or [])
    does = {name: wording.PROBES[name][1] for name in (wording.PROBES if facts.on_screens else PROBES)}
    does |= wording.ON_SCREENS if facts.on_screens else {}
    return [
        Line(wording.probe(name), [Cell("asked") if name in asked else dash("not asked in this run"), Cell("", words)])
        for name, words in does.items()
    ]


def survival(manifest: Mapping[str, Any]) -> list[Line]:
    """Canaries that were inserted, and that kept their code through tokenisation, truncation and loss mask."""
    found = manifest.get("survival") or {}
    nested = {name: value for name, value in found.items() if isinstance(value, Mapping)}
    return [_survived(name, value) for name, value in (nested or ({"": found} if found else {})).items()]


def _survived(name: str, found: Mapping[str, Any]) -> Line:
    inserted = found.get("canaries", found.get("inserted"))
    cells = [_count(inserted), _count(found.get("rows_inserted", found.get("rows_checked")))]
    for key in ("tokenised", "untruncated", "supervised"):
        lost = is_number(inserted) and is_number(found.get(key)) and found[key] < inserted
        cell = _count(found.get(key))
        cells.append(Cell(cell.text, f"{count(inserted - found[key])} lost") if lost else cell)
    limit = found.get("max_tokens")
    longest = _count(found.get("longest_row_tokens"))
    cells.append(Cell(longest.text, f"limit {count(limit)}" if is_number(limit) else longest.detail, longest.missing))
    return Line(plain(name) or "the training file", cells)


def _count(value: object) -> Cell:
    return Cell(count(value)) if is_number(value) else dash("not checked")


def bounds(manifest: Mapping[str, Any], verdict: Mapping[str, Any]) -> tuple[list[Line], list[str]]:
    """The lower bounds on epsilon, one a training, and what they compare; empty where none was asked for."""
    found = manifest.get("epsilon") or verdict.get("epsilon") or []
    entries: Sequence[Mapping[str, Any]] = [found] if isinstance(found, Mapping) else found
    compared = [plain(entry["adjacency"]) for entry in entries if entry.get("adjacency")]
    return [_bound(entry) for entry in entries], list(dict.fromkeys(compared))


def _bound(entry: Mapping[str, Any]) -> Line:
    where = [
        plain(entry[key]) if key == "condition" else f"{name} {plain(entry[key])}"
        for key, name in (("condition", ""), ("seed", "seed"), ("step", "update"))
        if entry.get(key) is not None
    ]
    value, r, v = entry.get("epsilon"), entry.get("r"), entry.get("v")
    refused = entry.get("refused")
    bound = (
        Cell(decimal(value, 2)) if is_number(value) and not refused else dash(f"refused: {refused}" if refused else "")
    )
    if not bound.missing and entry.get("calibrated") is not None:
        bound = Cell(bound.text, "scores less those of the base model" if entry["calibrated"] else "scores as they are")
    right = Cell(f"{count(v)} of {count(r)}") if is_number(v) and is_number(r) else dash("not counted")
    rest = [entry.get(key) for key in ("m", "ceiling", "delta", "significance")]
    written_rest = [count(rest[0]) if is_number(rest[0]) else "", decimal(rest[1], 2) if is_number(rest[1]) else ""]
    written_rest += [f"{one:g}" if is_number(one) else "" for one in rest[2:]]
    cells = [Cell(text) if text else dash("not recorded") for text in written_rest]
    return Line(", ".join(where) or "the training", [bound, right, *cells])

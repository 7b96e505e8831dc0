"""What a finished run says on the terminal: the verdict, a short table, where the report is."""

from __future__ import annotations

from indelible.audit import Outcome
from indelible.stats.metrics import Metric

CONTROLS = {"base": "the base model", "bag-of-words": "a classifier that sees only the words"}


def summarise(outcome: Outcome) -> str:
    """A few plain lines."""
    verdict = outcome.evaluation.verdict.to_dict()
    rows = {(m.attack, m.model, m.metric): m for m in outcome.evaluation.metrics}
    lines = [f"verdict: {verdict['overall']['word']}"]
    for name, control in verdict["controls"].items():
        if not control["ran"]:
            lines.append(f"  no control by {CONTROLS.get(name, name)}: {control['reason']}")
    if verdict["overall"]["word"] == "not evaluable":
        lines += [f"  {name}: {reason}" for name, judged in verdict["attacks"].items() for reason in judged["reasons"]]
    if any(_low(rows.get((name, "target", "auc"))) for name in verdict["attacks"]):
        lines.append("  some attacks score members LOWER than non-members: are the two files swapped?")
    lines.append("")
    level = next((f"{m.level:.0%}" for m in rows.values() if m.level is not None), "no")
    lines.append(f"{'attack':<16}{f'AUC ({level} interval)':<24}{'on the base':<13}{'TPR at 1% FPR':<15}verdict")
    for name, judged in verdict["attacks"].items():
        auc = rows.get((name, "target", "auc"))
        base = rows.get((name, "base", "auc"))
        tpr = rows.get((name, "target", "tpr@0.01"))
        lines.append(f"{name:<16}{_interval(auc):<24}{_value(base):<13}{_value(tpr):<15}{judged['word']}")
    blind = rows.get(("bag-of-words", "none", "auc"))
    if blind is not None and blind.value is not None:
        lines.append(f"{'bag-of-words':<16}{_interval(blind):<24}{'':<13}{'':<15}control: sees the data, no model")
    fitted = rows.get(("combined", "none", "auc"))
    if fitted is not None and fitted.value is not None:
        lines.append(f"{'combined':<16}{_interval(fitted):<24}{'':<13}{'':<15}upper view: fitted on known members")
    lines += ["", f"report: {outcome.path / 'report.html'}"]
    lines += [f"not run: {line}" for line in outcome.not_run]
    lines += [f"gate: {line}" for line in outcome.tripped]
    return "\n".join(lines)


def _low(metric: Metric | None) -> bool:
    """Clearly below one half."""
    return metric is not None and metric.high is not None and metric.high < 0.5


def _value(metric: Metric | None) -> str:
    return "n/a" if metric is None or metric.value is None else f"{metric.value:.3f}"


def _interval(metric: Metric | None) -> str:
    if metric is None or metric.value is None:
        return "n/a"
    if metric.low is None or metric.high is None:
        return f"{metric.value:.3f}"
    return f"{metric.value:.3f} ({metric.low:.3f} to {metric.high:.3f})"

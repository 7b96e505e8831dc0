"""The gate: parsing, and that nothing missing passes in silence."""

from __future__ import annotations

import pytest

from indelible.errors import ConfigError
from indelible.stats.gate import parse_gate
from indelible.stats.metrics import Metric
from indelible.stats.verdict import AttackVerdict, Verdict

METRICS = (
    Metric("icp-sp", "target", "tpr@0.01", 0.07, low=0.04, high=0.11),
    Metric("icp-sp", "target", "auc", 0.8, low=0.75, high=0.84),
    Metric("icp-sp", "base", "auc", 0.99),
    Metric("loss", "target", "auc", 0.55, low=0.49, high=0.6),
    Metric("loss", "target", "tpr@0.01", None, reason="50 non-members"),
    Metric("bag-of-words", "none", "auc", 0.95),
)
VERDICT = Verdict(
    "detected",
    "rule",
    (),
    {"icp-sp": AttackVerdict("detected", "rule", ()), "loss": AttackVerdict("not evaluable", "rule", ())},
)


def causes(text: str) -> list[str]:
    return parse_gate(text).tripped(METRICS, VERDICT)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("icp-sp:tpr@0.01>0.05", 1),
        ("icp-sp:tpr@1e-2 >= 0.07", 1),
        ("icp-sp:tpr@0.01>0.07", 0),
        ("icp-sp:tpr@0.01.low>0.05", 0),
        ("icp-sp:auc.high<0.9", 1),
        ("icp-sp:auc<=0.8", 1),
        ("icp-sp:auc==0.8", 1),
        ("icp-sp:auc!=0.8", 0),
        ("any:auc>=0.6", 1),  # the base model and the blind control are no attacks on the target
        ("any:auc>=0.5", 2),
        ("bag-of-words:auc>0.9", 1),
        ("verdict==detected", 1),
        ("verdict != 'detected'", 0),
        ("verdict==not_attributable", 0),
        ("icp-sp:verdict==detected", 1),
        ("loss:verdict==not evaluable", 1),
        ("loss:verdict!=not detected", 1),
    ],
)
def test_operators_and_names(text, n):
    assert len(causes(text)) == n


@pytest.mark.parametrize(
    "text", ["loss:tpr@0.01>0.9", "any:tpr@0.01>0.9", "loss:verdict==detected", "bag-of-words:auc.low>0"]
)
def test_what_is_missing_trips(text):
    (cause,) = causes(text)
    assert "could not be evaluated" in cause


def test_an_audit_without_attacks_does_not_pass():
    empty = Verdict("not evaluable", "rule", ())
    assert "could not be evaluated" in parse_gate("verdict==detected").tripped((), empty)[0]
    assert "could not be evaluated" in parse_gate("any:verdict==detected").tripped((), empty)[0]
    with pytest.raises(ConfigError):
        parse_gate("any:auc>0.5").tripped((), empty)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("icp-sp", "cannot be read"),
        ("auc>0.5", "names no attack"),
        ("loss:auc=>0.5", "Did you mean"),
        ("loss:auc>high", "not a number"),
        ("loss:auc>nan", "NaN"),
        ("loss:tpr@1%>0.5", "not a rate"),
        ("verdict==detectd", "Did you mean 'detected'"),
        ("verdict>detected", "== or !="),
    ],
)
def test_bad_expressions_are_one_clear_line(text, said):
    with pytest.raises(ConfigError) as caught:
        parse_gate(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("icp-ps:auc>0.5", "Did you mean 'icp-sp'"),
        ("loss:aux>0.5", "Did you mean 'auc'"),
        ("los:verdict==detected", "Did you mean 'loss'"),
        ("any:aux>0.5", "Did you mean 'auc'"),
    ],
)
def test_unknown_names_get_a_suggestion_when_applied(text, hint):
    with pytest.raises(ConfigError, match=hint):
        causes(text)

"""Which attacks a run keeps when its models do not give everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from indelible.attacks import make_attack
from indelible.attacks.label_only import LabelOnly
from indelible.errors import ConfigError
from indelible.models.base import EVERYTHING, Access
from indelible.selection import without_access


@dataclass(frozen=True)
class Gives:
    name: str
    access: frozenset[Access]


HERE = Gives("a model on this machine", EVERYTHING)
TALKS = Gives("a server that chats", frozenset({"text"}))
SCORES = Gives("a server that scores", frozenset({"text", "logprobs", "top-k"}))
BY_NAME = {"attacks": ("one", "by", "one")}


def kept(
    names: list[str], given: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **models: Gives
) -> tuple[dict[str, Any], dict[str, str]]:
    attacks = {name: make_attack(name, settings) for name in names}
    not_run: list[dict[str, str]] = []
    found = without_access(attacks, models, given or {}, not_run)  # type: ignore[arg-type]
    return found, {n["what"]: n["reason"] for n in not_run}


@pytest.mark.parametrize("name", ["petal", "icp-label", "icp-label-ref"])
def test_attacks_on_labels_ask_a_target_that_gives_text_alone_for_text(name: str) -> None:
    found, left_out = kept([name, "loss"], target=TALKS, base=HERE)
    assert set(left_out) == {"loss"}
    attack = found[name]
    assert isinstance(attack, LabelOnly)
    assert (attack.ask, attack.access_to("target")) == ("text", "text")
    for target in (HERE, SCORES):
        attack = kept([name], target=target, base=HERE)[0][name]
        assert (attack.ask, attack.access_to("target")) == ("logprobs", "top-k")


def test_how_an_attack_on_labels_is_told_to_ask_stays() -> None:
    with pytest.raises(ConfigError, match="petal needs the most probable next tokens of the target model"):
        kept(["petal"], BY_NAME, {"ask": "logprobs"}, target=TALKS, base=HERE)
    assert kept(["petal"], BY_NAME, {"ask": "text"}, target=HERE, base=HERE)[0]["petal"].ask == "text"


@pytest.mark.parametrize("base", [TALKS, SCORES])
def test_a_base_that_cannot_propose_leaves_neighbours_out_and_the_rest_in(base: Gives) -> None:
    found, left_out = kept(["loss", "neighborhood", "spv"], target=HERE, base=base, reference=HERE)
    assert list(found) == ["loss", "spv"]
    assert left_out == {
        "neighborhood": "neighborhood needs whole next-token distributions of the base model, which "
        f"{base.name} does not give"
    }
    with pytest.raises(ConfigError, match="neighborhood needs whole next-token distributions of the base model"):
        kept(["neighborhood"], BY_NAME, target=HERE, base=base)
    assert kept(["neighborhood"], BY_NAME, {"model": "roberta-base"}, target=HERE, base=base)[1] == {}
    assert list(kept(["neighborhood", "spv"], BY_NAME, target=HERE, base=HERE, reference=HERE)[0]) == [
        "neighborhood",
        "spv",
    ]

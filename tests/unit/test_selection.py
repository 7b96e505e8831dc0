"""Which attacks a run keeps when its models do not give everything."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from indelible.attacks import COMPAT, make_attack
from indelible.attacks.label_only import LabelOnly
from indelible.data.records import Record
from indelible.data.splits import Cohort, split_frame
from indelible.environment import default_out
from indelible.errors import ConfigError
from indelible.models.base import EVERYTHING, Access
from indelible.selection import controlled, without_access, without_known


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


def test_where_nothing_is_left_the_message_names_what_could_run() -> None:
    with pytest.raises(
        ConfigError, match=r"gives too little for loss, icp-sp; .*--attacks .*petal,samia.*tokenizer=FOLDER"
    ):
        kept(["loss", "icp-sp"], target=TALKS, base=HERE)


def test_a_base_that_gives_less_has_no_control_for_what_it_cannot_answer() -> None:
    attacks = {name: make_attack(name) for name in ("loss", "min-k++", "samia")}
    not_run: list[dict[str, str]] = []
    assert list(controlled(attacks, TALKS, not_run)) == ["samia"]  # type: ignore[arg-type]
    (note,) = not_run
    assert note["what"] == "base"
    assert "loss, min-k++: a server that chats does not give log-probabilities of given text" in note["reason"]
    assert list(controlled(attacks, HERE, not_run)) == list(attacks)  # type: ignore[arg-type]
    assert len(not_run) == 1


def cohort(sizes: list[int]) -> Cohort:
    """Members in groups of these sizes."""
    members = [Record(f"g{g}-{i}", (), f"text {g} {i}", group=f"g{g}") for g, n in enumerate(sizes) for i in range(n)]
    return Cohort(tuple(members), (Record("n", (), "other"),), (), {}, ())


@pytest.mark.parametrize("sizes", [[2] * 50, [1] * 100, [3] * 8, [8, 8, 1], [7, 7]])
def test_enough_members_are_set_aside_in_whole_groups(sizes: list[int]) -> None:
    attacks = {name: make_attack(name) for name in ("loss", "con-recall")}
    before = cohort(sizes)
    found, after = without_known(attacks, before, 0, BY_NAME, [])
    assert list(found) == ["loss", "con-recall"]
    assert len(after.known) >= attacks["con-recall"].n_known == 7
    assert {*after.known, *after.members} == {*before.members}
    assert not {r.group for r in after.known} & {r.group for r in after.members}
    assert after.members
    sides = split_frame(after).groupby("side")["member"].agg(["size", "all"])
    assert sides.loc["known"].tolist() == [len(after.known), True]


def test_too_few_members_leave_con_recall_out() -> None:
    attacks = {name: make_attack(name) for name in ("loss", "con-recall")}
    not_run: list[dict[str, str]] = []
    found, after = without_known(attacks, cohort([1] * 7), 0, {"attacks": ("all",)}, not_run)
    assert list(found) == ["loss"]
    assert (len(after.members), after.known) == (7, ())
    assert not_run == [
        {"what": "con-recall", "reason": "7 known members are to be set aside, whole groups, of 7: give more members"}
    ]
    with pytest.raises(ConfigError, match="give more members, or leave out con-recall"):
        without_known(attacks, cohort([1] * 7), 0, BY_NAME, [])


def test_calibrated_scores_make_the_probes_of_the_score_they_calibrate() -> None:
    for name in ("icp-sp", "icp-ref"):
        one, two = (make_attack(n, COMPAT["icp-mia"][n]) for n in (name, f"{name}-cal"))
        assert dataclasses.asdict(one) == {**dataclasses.asdict(two)}


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("server:http://host:8000/v1?model=org/NAME&tokenizer=tok", "NAME"),
        ("server:http://host:8000/v1", "server"),
        ("org/Llama-3.2-1B", "Llama-3.2-1B"),
        ("models/qwen.gguf", "qwen"),
        ("builtin:toy", "toy"),
    ],
)
def test_runs_are_named_after_the_model(name: str, stem: str) -> None:
    assert default_out("audit", name) == f"runs/audit-{stem}-1"

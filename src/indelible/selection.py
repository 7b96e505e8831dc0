"""Which attacks a run has, and what it says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from indelible.attacks import ATTACKS, COMPAT, FITTED, Attack, make_attack
from indelible.attacks.label_only import LabelOnly
from indelible.config import AuditConfig
from indelible.data.splits import Cohort
from indelible.errors import ConfigError, did_you_mean
from indelible.interview import too_small_pool
from indelible.models.base import Access, LanguageModel
from indelible.models.sources import locate
from indelible.parts import set_aside
from indelible.stats.blind import BLIND_ATTACK
from indelible.stats.combined import COMBINED, N_FOLDS, N_REPEATS, PENALTY_C

NEEDS: dict[str, str] = {
    "weights": "whole next-token distributions",
    "logprobs": "log-probabilities of given text",
    "top-k": "the most probable next tokens",
    "text": "replies",
}
"""What the `access` of an attack asks of a model."""

MOST_FIRST: tuple[Access, ...] = ("logprobs", "top-k", "text")


def most_of(access: Collection[Access]) -> Access:
    """The most telling thing that a model gives of a text."""
    return next(given for given in MOST_FIRST if given in access)


FORGIVING = "leave out what cannot run"
"""Set beside what was given by a caller that names attacks and wants those that cannot run left out all the same."""


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """`all` stands for everything there is."""
    return (*ATTACKS, *FITTED) if "all" in names else tuple(names)


def asked_by_name(given: Mapping[str, Any]) -> bool:
    """Whether attacks were named one by one: then one that cannot run is an error, else it is left out and said why."""
    return "attacks" in given and "all" not in given["attacks"] and not given.get(FORGIVING)


def configured(name: str, config: AuditConfig) -> Attack:
    """An attack as an audit asks for it: its settings over those of `compat`, over its own.

    Raises:
        ConfigError: an unknown attack or setting, or a value out of range.
    """
    defaults = COMPAT[config.compat].get(name, {}) if config.compat else {}
    return make_attack(name, {**defaults, **config.settings.get(name, {})})


def choose_attacks(config: AuditConfig, given: Mapping[str, Any]) -> tuple[dict[str, Attack], list[dict[str, str]]]:
    """The attacks to run, by name, and what will not run with its reason.

    Raises:
        ConfigError: an unknown attack or setting; an attack asked for by name that lacks its model; nothing left.
    """
    names = [n for n in expand(config.attacks) if n not in FITTED]
    explicit = asked_by_name(given)
    if config.reference is not None and "reference" not in names and "attacks" not in given:
        names.append("reference")
    for name in config.settings:
        if name not in names:
            raise ConfigError(f"settings for '{name}', which is not among the attacks of this run ({', '.join(names)})")
    not_run: list[dict[str, str]] = []
    if BLIND_ATTACK not in expand(config.attacks):
        not_run.append({"what": BLIND_ATTACK, "reason": "not among the attacks asked for"})
    attacks: dict[str, Attack] = {}
    has_base = config.base is not None or locate(config.model).kind == "adapter"
    available = {
        "target": True,
        "base": has_base,
        "reference": config.reference is not None,
        "generator": has_base or config.generator is not None,  # the base writes where nothing else is named
    }
    for name in names:
        attack = configured(name, config)
        needed = (*attack.roles, "base") if attack.needs_base else attack.roles
        missing = [role for role in needed if not available[role]]
        if missing:
            other = f" or --set {name}.{attack.writer}=NAME" if missing[0] == "base" and attack.writer else ""
            if explicit:
                raise ConfigError(f"attack '{name}' needs a {missing[0]} model: give --{missing[0]}{other}")
            not_run.append({"what": name, "reason": f"no {missing[0]} model given (--{missing[0]}{other})"})
        else:
            attacks[name] = attack
    if not attacks:
        raise ConfigError("no attack left to run: bag-of-words and combined cannot run alone")
    return attacks, not_run


def without_pool(
    attacks: Mapping[str, Attack], n_pool: int, given: Mapping[str, Any], not_run: list[dict[str, str]]
) -> dict[str, Attack]:
    """The attacks for which the pool suffices. Of the default ones the rest is noted in `not_run`.

    Raises:
        ConfigError: an attack asked for by name lacks pool records.
    """
    kept: dict[str, Attack] = {}
    for name, attack in attacks.items():
        if n_pool >= attack.n_pool:
            kept[name] = attack
            if n_pool < attack.n_pool_wanted:
                why = f"in full: the pool holds {n_pool} records of the {attack.n_pool_wanted} that it would use"
                not_run.append({"what": name, "reason": why})
        elif asked_by_name(given):
            raise ConfigError(too_small_pool(attack, n_pool))
        else:
            not_run.append({"what": name, "reason": too_small_pool(attack, n_pool)})
    return kept


def without_known(
    attacks: Mapping[str, Attack], cohort: Cohort, seed: int, given: Mapping[str, Any], not_run: list[dict[str, str]]
) -> tuple[dict[str, Attack], Cohort]:
    """The attacks for which members can be set aside, and the cohort with as many set aside as they need.

    Raises:
        ConfigError: an attack asked for by name needs more members than there are.
    """
    kept = dict(attacks)
    for name in sorted(attacks, key=lambda name: -attacks[name].n_known):
        try:
            return kept, set_aside(cohort, max((a.n_known for a in kept.values()), default=0), seed)
        except ConfigError as error:
            if asked_by_name(given):
                raise ConfigError(f"{error}, or leave out {name}") from error
            not_run.append({"what": name, "reason": str(error)})
            del kept[name]
    return kept, cohort


def without_access(
    attacks: Mapping[str, Attack],
    models: Mapping[str, LanguageModel],
    given: Mapping[str, Any],
    not_run: list[dict[str, str]],
) -> dict[str, Attack]:
    """The attacks whose models give what they need, a base that is to write among them; those that can ask in two ways
    ask as the audited model allows. The rest is noted in `not_run`.

    Raises:
        ConfigError: an attack asked for by name needs more than a model gives.
    """
    kept: dict[str, Attack] = {}
    for name, attack in attacks.items():
        if isinstance(attack, LabelOnly):
            attack = attack.asking(models["target"].access)
        roles = dict.fromkeys((*attack.roles, "base") if attack.needs_base else attack.roles)
        closed = [role for role in roles if attack.access_to(role) not in {*models[role].access, "none"}]
        if not closed:
            kept[name] = attack
            continue
        needed = f"{name} needs {NEEDS[attack.access_to(closed[0])]} of the {closed[0]} model"
        why = f"{needed}, which {models[closed[0]].name} does not give"
        if asked_by_name(given):
            raise ConfigError(f"{why}: leave it out, or give a model on this machine")
        not_run.append({"what": name, "reason": why})
    if not kept:
        raise ConfigError(_nothing_left(attacks, models["target"]))
    return kept


def _nothing_left(attacks: Collection[str], target: LanguageModel) -> str:
    """That no attack can run, and which could."""
    others = []
    for name in (name for name in ATTACKS if name not in attacks):
        attack = make_attack(name)
        attack = attack.asking(target.access) if isinstance(attack, LabelOnly) else attack
        if attack.access_to("target") in {*target.access, "none"}:
            others.append(name)
    able = f"; with what it gives there are --attacks {','.join(others)}" if others else ""
    more = "" if "logprobs" in target.access else "; a server may give more with tokenizer=FOLDER in its address"
    return f"no attack left to run: {target.name} gives too little for {', '.join(attacks)}{able}{more}"


def controlled(attacks: Mapping[str, Attack], base: LanguageModel, not_run: list[dict[str, str]]) -> dict[str, Attack]:
    """The attacks that the base model can answer in the target's place; the others have no control on it, as `not_run`
    says."""
    kept, closed = {}, []
    for name, attack in attacks.items():
        if attack.access_to("target") in {*base.access, "none"}:
            kept[name] = attack
        else:
            closed.append(name)
    if closed:
        needed = ", ".join(dict.fromkeys(NEEDS[attacks[name].access_to("target")] for name in closed))
        why = f"for {', '.join(closed)}: {base.name} does not give {needed}"
        not_run.append({"what": "base", "reason": why})
    return kept


def attack_facts(attacks: Mapping[str, Attack], config: AuditConfig) -> list[dict[str, Any]]:
    """The manifest's `attacks`: what each is, where it comes from, with which settings."""
    facts: list[dict[str, Any]] = [
        {
            "name": name,
            "settings": dataclasses.asdict(attack),
            "access": attack.access_to("target"),
            "formula": attack.formula,
            "paper": attack.paper,
            "deviation": attack.deviation,
            "fitted": False,
        }
        for name, attack in attacks.items()
    ]
    if BLIND_ATTACK in expand(config.attacks):
        facts.append(
            {
                "name": BLIND_ATTACK,
                "settings": {},
                "access": "none",
                "formula": FITTED[BLIND_ATTACK],
                "paper": "Meeus et al. 2024",
                "deviation": "fold-averaged AUC and a permutation test; the released code pools the folds",
                "fitted": True,
            }
        )
    if COMBINED in expand(config.attacks):
        facts.append(
            {
                "name": COMBINED,
                "settings": {"C": PENALTY_C, "folds": N_FOLDS, "repeats": N_REPEATS},
                "access": "none",
                "formula": FITTED[COMBINED],
                "paper": "none: ours",
                "deviation": "",
                "fitted": True,
            }
        )
    return facts


def check_names(names: Sequence[str]) -> None:
    """Raise a ConfigError for an unknown attack name before anything is read."""
    for name in names:
        if name != "all" and name not in ATTACKS and name not in FITTED:
            raise ConfigError(did_you_mean(name, [*ATTACKS, *FITTED], "attack"))

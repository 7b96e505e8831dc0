"""What every attack of the registry promises, checked on the tuned toy."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from indelible.attacks import ATTACKS, COMPAT, FITTED, make_attack
from indelible.attacks.base import Access, Attack, Resources, score_all
from indelible.data.records import Message, Query, Record
from indelible.errors import ConfigError, Unscorable
from indelible.interview import Interview, prepare, score_frame
from indelible.models.base import TokenLogprobs
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.engine import Answers

SMALL = {
    "recall": {"shots": 2},
    "con-recall": {"shots": 2},
    "icp-ref": {"k": 3},
    "icp-sp": {"k": 3},
    "icp-ref-cal": {"k": 3},
    "icp-sp-cal": {"k": 3},
    "icp-sp-gen": {"k": 2},
    "icp-label": {"k": 3},
    "icp-label-ref": {"k": 2},
    "samia": {"n": 2},
    "neighborhood": {"n": 3},
    "spv": {"n": 2},
    "pac": {"n": 2},
}  # the toy's context is short
N_SEVERAL = 12
every_attack = pytest.mark.parametrize("name", list(ATTACKS))
TRANSCRIBED_ELSEWHERE = {
    "lowercase": "oracle/test_perturbation_attacks.py",
    "neighborhood": "oracle/test_perturbation_attacks.py",
    "pac": "oracle/test_perturbation_attacks.py",
    "spv": "oracle/test_perturbation_attacks.py",
    "petal": "oracle/test_label_only.py",
    "icp-label": "oracle/test_label_only.py",
    "icp-label-ref": "oracle/test_label_only.py",
    "icp-sp-gen": "oracle/test_generation_attacks.py",
    "samia": "oracle/test_generation_attacks.py",
}
"""Attacks that rewrite the record or ask for text: their formulas stand beside the slow making of their questions."""
by_likelihood = pytest.mark.parametrize("name", [n for n in ATTACKS if n not in TRANSCRIBED_ELSEWHERE])
NEEDS_TWO_WORDS = ("icp-sp", "icp-sp-lowest", "icp-sp-highest", "icp-sp-cal", "icp-label")


def hashed(text: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
    v = np.random.default_rng(seed).normal(size=8)
    return (v / np.linalg.norm(v)).astype(np.float32)


@dataclass(frozen=True)
class Asked:
    """All attacks asked together about a few members, non-members and odd records."""

    attacks: Mapping[str, Attack]
    records: list[Record]
    answers: Answers
    resources: Resources
    interview: Interview
    members: frozenset[str]


@pytest.fixture(scope="module", autouse=True)
def embedding() -> Iterator[None]:
    """A deterministic stand-in for the sentence embedder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indelible.attacks.context.embed", lambda texts, *_: np.stack([hashed(t) for t in texts]))
        # of tokens, as of words in a real embedder: nothing is the opposite of anything
        patch.setattr("indelible.data.similarity.embed", lambda texts, *_: np.abs([hashed(t) for t in texts]))
        yield


@pytest.fixture(scope="module")
def asked(toy, tuned_toy, lora_toy, rows) -> Asked:
    options = LoadOptions(device="cpu", dtype="float32")
    models = {"target": load_model(str(tuned_toy), options)[0], "base": toy}
    models["reference"] = load_model(str(lora_toy), options)[0]
    models["generator"] = toy
    talk = Record(
        "several turns",
        (
            Message("system", "Be brief."),
            Message("user", "Hi there."),
            Message("assistant", "Good day Ada, how are you?", scored=True),
            Message("user", "Fine, and you?"),
        ),
        "Thank you, I am well today.",
    )
    text = Record("plain text", (), "The blue kite is in room 12 of the house.")
    records = [*rows.members[:N_SEVERAL], *rows.nonmembers[:N_SEVERAL], talk, text]
    attacks = {name: make_attack(name, SMALL.get(name)) for name in ATTACKS}
    interview = Interview(models)
    resources = Resources(
        pool=rows.pool,
        known=rows.members[N_SEVERAL : N_SEVERAL + 4],
        spans=lambda q: models["target"].encode(q).spans,
        tokens=lambda q: models["target"].encode(q).target_ids.tolist(),
        base=toy,
    )
    records = prepare(list(attacks.values()), records, resources)
    answers = interview.ask(list(attacks.values()), records)
    members = frozenset(r.id for r in rows.members)
    return Asked(attacks, records, answers, resources, interview, members)


# The formulas, written down a second time.


def ll(a: Asked, record: Record, context: tuple[Message, ...] = (), role: str = "target") -> float:
    system = tuple(m for m in record.messages[:1] if m.role == "system")
    messages = system + tuple(context) + record.messages[len(system) :]
    n = len(a.answers[Query(record.messages, record.target)].logprobs)  # plain text alone lacks its first token
    return float(np.mean(a.answers[Query(messages, record.target, (), role)].logprobs.astype(float)[-n:]))


def raw(a: Asked, record: Record) -> TokenLogprobs:
    return a.answers[Query(record.messages, record.target)]


def turned(record: Record, texts: list[str]) -> tuple[Message, ...]:
    """The record's conversation with these texts as its answers."""
    left = list(texts)
    out = [Message(m.role, left.pop(0) if m.scored else m.content) for m in record.messages if m.role != "system"]
    return (*out, Message("assistant", left[0]) if record.messages else Message("text", left[0] + "\n"))


def answers_of(record: Record) -> list[str]:
    return [m.content for m in record.messages if m.scored] + [record.target]


def lowest(values: np.ndarray) -> float:
    ordered = sorted(values.astype(float).tolist())
    return float(np.mean(ordered[: max(1, math.floor(0.2 * len(ordered)))]))


def icp(
    a: Asked,
    record: Record,
    contexts: list[tuple[Message, ...]],
    over: Callable[..., float] = min,
    role: str = "target",
) -> float:
    return over([ll(a, record, role=role) - ll(a, record, c, role) for c in contexts])


def icp_ref(a: Asked, record: Record, role: str = "target") -> float:
    def key(r: Record) -> np.ndarray:
        return hashed("\n".join(m.content for m in r.messages) if r.messages else r.target).astype(float)

    near = sorted(a.resources.pool, key=lambda p: -float(key(p) @ key(record)))[:3]
    n_tokens = len(raw(a, record).logprobs)  # the target's tokens are the same whatever the context: sum = n * mean
    return n_tokens * icp(a, record, [turned(p, answers_of(p)) for p in near], role=role)


def icp_sp(a: Asked, record: Record, role: str = "target") -> float:
    (contexts,) = [v for k, v in record.variants.items() if k.startswith("masks")]
    shown = list(contexts)
    assert len(shown) == 3
    for context in shown:
        masked = [m.content for m in context if m.role in ("assistant", "text")]
        for text, given in zip(answers_of(record), masked, strict=True):
            assert given.count("[MASK]") == len(text.split()) // 2
        assert turned(record, [m.rstrip("\n") for m in masked]) == context
    return icp(a, record, shown, over=statistics.fmean, role=role)


def con_recall(a: Asked, record: Record) -> float:
    (prefixes,) = [v for k, v in record.variants.items() if k.startswith("contrast")]
    for prefix, source in zip(prefixes, (a.resources.pool, a.resources.known), strict=True):
        answers = [m.content for m in prefix if m.role == "assistant"]
        assert len(answers) == 2
        assert set(answers) <= {r.target for r in source}
    without, within = (ll(a, record, prefix) for prefix in prefixes)
    return (without - 0.5 * within) / ll(a, record)


def dc_pdd(a: Asked, record: Record) -> float:
    def ids(r: Record) -> list[int]:
        encoded = a.interview.models["target"].encode(Query(r.messages, r.target))
        return [int(i) for i, is_target in zip(encoded.input_ids, encoded.is_target, strict=True) if is_target]

    corpus = [token for r in a.resources.pool for token in ids(r)]
    kinds = len(set(corpus)) + 1  # and one for all that do not occur
    parts, seen = [], []
    for token, logp in zip(ids(record), raw(a, record).logprobs.tolist(), strict=True):
        if token not in seen:
            frequency = (corpus.count(token) + 1) / (len(corpus) + kinds)
            parts.append(min(0.01, math.exp(logp) * -math.log(frequency)))
        seen.append(token)
    return sum(parts) / len(parts)


def icp_masked(a: Asked, record: Record, sign: int) -> float:
    model = a.interview.models["target"]
    spans = model.encode(Query(record.messages, record.target)).spans
    masked = []
    for turn, text in enumerate(answers_of(record)):
        found = list(re.finditer(r"\S+", text))
        sums = [0.0] * len(found)
        for span, logp in zip(spans, raw(a, record).logprobs.astype(float), strict=True):
            if span is not None and span.turn == turn:  # a blank token counts for the word it precedes
                first = next(i for i in range(span.start, len(text)) if not text[i].isspace())
                sums[next(i for i, w in enumerate(found) if w.start() <= first < w.end())] += logp
        chosen = set(sorted(range(len(found)), key=lambda i: sign * sums[i])[: len(found) // 2])
        parts = re.split(r"(\s+)", text)
        for i in chosen:
            parts[2 * i] = "[MASK]"
        masked.append("".join(parts))
    return icp(a, record, [turned(record, masked)])


def z_scores(answer: TokenLogprobs) -> np.ndarray:
    return (answer.logprobs.astype(float) - answer.mean) / answer.std


FORMULAS: dict[str, Callable[[Asked, Record], float]] = {
    "loss": ll,
    "zlib": lambda a, r: ll(a, r) / len(zlib.compress("\n".join(answers_of(r)).encode())),
    "min-k": lambda a, r: lowest(raw(a, r).logprobs),
    "min-k++": lambda a, r: lowest(z_scores(raw(a, r))),
    "recall": lambda a, r: ll(a, r, next(v for k, v in r.variants.items() if k.startswith("prefix"))[0]) / ll(a, r),
    "con-recall": con_recall,
    "dc-pdd": dc_pdd,
    "icp-sp-cal": lambda a, r: icp_sp(a, r) - icp_sp(a, r, "base"),
    "icp-ref-cal": lambda a, r: icp_ref(a, r) - icp_ref(a, r, "base"),
    "reference-base": lambda a, r: ll(a, r) - ll(a, r, role="base"),
    "reference": lambda a, r: ll(a, r) - ll(a, r, role="reference"),
    "icp-ref": icp_ref,
    "icp-sp": icp_sp,
    "icp-sp-lowest": lambda a, r: icp_masked(a, r, 1),
    "icp-sp-highest": lambda a, r: icp_masked(a, r, -1),
}


def test_the_papers_choice_is_the_probe_that_helps_most(asked: Asked) -> None:
    for record in asked.records:
        contexts = list(next(v for k, v in record.variants.items() if k.startswith("masks")))
        best = make_attack("icp-sp", {"k": 3, "probes": "best"}).score(record, asked.answers)
        assert best == pytest.approx(icp(asked, record, contexts), abs=1e-6)


def test_every_attack_has_its_formula_written_down_a_second_time() -> None:
    assert set(FORMULAS) | set(TRANSCRIBED_ELSEWHERE) == set(ATTACKS)
    assert not set(FORMULAS) & set(TRANSCRIBED_ELSEWHERE)
    tests = Path(__file__).parents[1]
    for name, where in TRANSCRIBED_ELSEWHERE.items():
        assert ATTACKS[name].__name__ in (tests / where).read_text()


@every_attack
def test_an_attack_is_a_frozen_dataclass_that_says_what_it_is(name: str) -> None:
    cls = ATTACKS[name]
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert cls.name == name
    assert cls.formula.strip()
    assert cls.paper.strip()
    assert (cls.__doc__ or "").strip()
    assert cls.access in get_args(Access)
    assert set(cls.roles) <= {"target", "base", "reference", "generator"}


@by_likelihood
def test_the_score_is_its_formula(asked: Asked, name: str) -> None:
    scores, reasons = score_all(asked.attacks[name], asked.records, asked.answers)
    assert reasons == {}
    for record in asked.records:
        assert scores[record.id] == pytest.approx(FORMULAS[name](asked, record), abs=1e-6), record.id


@every_attack
def test_questions_go_to_the_declared_models_and_end(asked: Asked, name: str) -> None:
    attack = asked.attacks[name]
    roles: set[str] = set()
    for record in asked.records:
        questions = attack.queries(record, asked.answers)
        assert all(q in asked.answers for q in questions), "nothing new in a last round"
        if name not in TRANSCRIBED_ELSEWHERE:
            assert {(q.messages, q.target) for q in questions} >= {(record.messages, record.target)}
            assert all(q.target == record.target for q in questions)
        roles |= {q.model for q in questions}
    assert roles == set(attack.roles)


@every_attack
def test_a_score_depends_on_no_other_record_and_no_order(asked: Asked, name: str) -> None:
    attack = asked.attacks[name]
    before = {r.id: replace(r, variants={}) for r in asked.records}
    whole, _ = score_all(attack, asked.records, asked.answers)
    reverse, _ = score_all(attack, attack.prepare(list(before.values())[::-1], asked.resources), asked.answers)
    assert reverse == whole
    for record in (asked.records[0], asked.records[-1], asked.records[-2]):
        alone, _ = score_all(attack, attack.prepare([before[record.id]], asked.resources), asked.answers)
        assert alone == {record.id: whole[record.id]}


def spoilt(answers: Answers, query: Query, kind: str) -> Answers:
    found, failed = dict(answers.found), dict(answers.failed)
    a = found.pop(query)
    if kind == "failed":
        failed[query] = "longer than the context (9 > 8 tokens)"
    elif kind == "no token":
        found[query] = TokenLogprobs(a.logprobs[:0], a.mean[:0], a.std[:0], a.argmax[:0])
    else:
        found[query] = replace(a, logprobs=np.concatenate([a.logprobs[:-1], [np.float32(kind)]]))
    return Answers(found, failed, answers.spans)


@by_likelihood
@pytest.mark.parametrize("kind", ["failed", "no token", "nan", "-inf"])
def test_an_answer_that_is_missing_gives_no_number_but_a_reason(asked: Asked, name: str, kind: str) -> None:
    attack, record = asked.attacks[name], asked.records[0]
    questions = attack.queries(record, asked.answers)
    for query in questions:
        scores, reasons = score_all(attack, [record], spoilt(asked.answers, query, kind))
        assert math.isnan(scores[record.id])
        expected = {"failed": "longer than the context", "no token": "token"}.get(kind, "finite")
        assert expected in reasons[record.id]


@every_attack
def test_a_record_that_cannot_be_asked_is_nan_with_a_reason_and_stops_no_one(asked: Asked, name: str) -> None:
    """From the questions on: too long for the context, and an answer of one word (nothing to mask)."""
    attack = asked.attacks[name]
    long = Record("long", (Message("user", "word " * 2000),), "two words")
    short = Record("short", (Message("user", "Yes or no?"),), "Yes")
    fine = replace(asked.records[1], variants={})
    records = prepare([attack], [long, short, fine], asked.resources)
    answers = Interview(asked.interview.models).ask([attack], records)
    frame = score_frame({name: attack}, records, answers, "target").set_index("record_id")
    assert math.isnan(frame.loc["long", "score"])
    assert "longer than the context" in frame.loc["long", "reason"]
    assert math.isfinite(frame.loc[fine.id, "score"])
    if name in NEEDS_TWO_WORDS:
        assert math.isnan(frame.loc["short", "score"])
        assert "nothing to mask" in frame.loc["short", "reason"]
    else:
        number, reason = frame.loc["short", ["score", "reason"]]
        assert math.isfinite(number) or (reason and name in TRANSCRIBED_ELSEWHERE)


def auc(positive: list[float], negative: list[float]) -> float:
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    return float(np.mean(pairs))


@by_likelihood
def test_a_record_the_model_knows_better_scores_higher(asked: Asked, name: str) -> None:
    """Higher = member: all else equal, doubling the log-likelihood of the record itself lowers the score."""
    attack, known = asked.attacks[name], asked.records[:N_SEVERAL]
    found = dict(asked.answers.found)
    for record in known:
        a = found[Query(record.messages, record.target)]
        found[Query(record.messages, record.target)] = replace(a, logprobs=a.logprobs * 2)
    better, _ = score_all(attack, known, asked.answers)
    worse, _ = score_all(attack, known, Answers(found, {}, asked.answers.spans))
    if name == "dc-pdd":  # a token's part has a limit, which answers of likely tokens reach either way
        assert all(worse[i] <= better[i] for i in better)
        assert any(worse[i] < better[i] for i in better)
    else:
        assert all(worse[i] < better[i] for i in better)


@pytest.mark.parametrize(
    "name", [n for n in ATTACKS if not n.startswith("icp") and n not in TRANSCRIBED_ELSEWHERE]
)  # the toy does not learn in context
def test_planted_members_score_higher(asked: Asked, name: str) -> None:
    scores, _ = score_all(asked.attacks[name], asked.records[: 2 * N_SEVERAL], asked.answers)
    inside = [s for i, s in scores.items() if i in asked.members]
    outside = [s for i, s in scores.items() if i not in asked.members]
    assert len(inside) == len(outside) == N_SEVERAL
    assert auc(inside, outside) > (0.9 if name in ("loss", "min-k", "reference-base") else 0.7)


def test_on_the_base_model_the_planted_members_are_not_found(asked: Asked) -> None:
    """The direction above comes from training: the base model does not tell these rows apart that well."""
    loss = asked.attacks["loss"]
    answers = asked.interview.ask([loss], asked.records, subject="base")
    scores, _ = score_all(loss, asked.records[: 2 * N_SEVERAL], answers)
    inside = [s for i, s in scores.items() if i in asked.members]
    outside = [s for i, s in scores.items() if i not in asked.members]
    assert 0.2 < auc(inside, outside) < 0.8


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("icp-sp", {"k": 2}, {"k": 2, "rate": 0.9}),
        ("icp-ref", {"k": 1}, {"k": 3}),
        ("recall", {"shots": 1}, {"shots": 2}),
    ],
)
def test_two_settings_of_one_attack_keep_their_variants_apart(asked: Asked, name: str, one: dict, two: dict) -> None:
    """An ablation asks one attack with several settings about the same records."""
    record = replace(asked.records[0], variants={})
    first, second = make_attack(name, one), make_attack(name, two)
    (alone,) = prepare([first], [record], asked.resources)
    (both,) = prepare([first, second], [record], asked.resources)
    assert first.queries(both, Answers({}, {})) == first.queries(alone, Answers({}, {}))


@pytest.mark.parametrize(("name", "setting"), [("recall", {"shots": 50}), ("icp-ref", {})])
def test_a_pool_that_is_too_small_is_one_clear_line(asked: Asked, name: str, setting: dict) -> None:
    attack = make_attack(name, setting)
    assert attack.n_pool == setting.get("shots", 1)
    with pytest.raises(ConfigError, match="give --pool") as caught:
        prepare([attack], asked.records, Resources(pool=()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("icp-ps", {}, "unknown attack 'icp-ps'. Did you mean 'icp-sp'"),
        ("icp-sp", {"rat": 0.5}, "unknown setting of icp-sp 'rat'. Did you mean 'rate'"),
        ("loss", {"rate": 0.5}, "loss has no settings"),
        ("icp-sp", {"rate": 0}, "rate=0"),
        ("icp-sp", {"rate": 1.5}, "rate=1.5"),
        ("icp-sp", {"rate": math.nan}, "rate=nan"),
        ("icp-sp", {"k": 0}, "k=0"),
        ("icp-ref", {"k": 0}, "k=0"),
        ("recall", {"shots": 0}, "shots=0"),
        ("min-k", {"fraction": 0}, "fraction=0"),
        ("min-k++", {"fraction": 2}, "fraction=2"),
        ("min-k", {"fraction": "much"}, "min-k"),
        ("icp-sp", {"k": 2.5}, "k=2.5"),
        ("icp-sp", {"unit": "wrod"}, "wrod"),
        ("icp-sp", {"mask": "lowset"}, "lowset"),
        ("icp-sp", {"reduce": "median"}, "median"),
        ("icp-sp", {"probes": "worst"}, "worst"),
        ("icp-ref", {"embed": "answer"}, "answer"),
        ("reference", {"reduce": "max"}, "max"),
    ],
)
def test_a_wrong_attack_or_setting_is_one_clear_line(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_attack(name, settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_compat_settings_are_settings_and_fitted_scores_are_no_attacks() -> None:
    for presets in COMPAT.values():
        for name, settings in presets.items():
            assert dataclasses.asdict(make_attack(name, settings)).items() >= settings.items()
    assert not set(FITTED) & set(ATTACKS)


def test_dc_pdd_has_no_score_on_a_model_with_other_tokens(asked: Asked) -> None:
    record, attack = asked.records[0], asked.attacks["dc-pdd"]
    ids = asked.answers.tokens(Query(record.messages, record.target))
    for other in ([*ids, 1], [ids[0] + 1, *ids[1:]]):
        answers = dataclasses.replace(asked.answers, tokens=lambda _, other=other: other)
        with pytest.raises(Unscorable, match="other tokens"):
            attack.score(record, answers)

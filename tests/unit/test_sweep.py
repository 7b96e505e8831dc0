"""Studies: their rows, their plan, real gradient steps taken back, and what is read from the numbers."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from indelible.attacks import context
from indelible.attacks.base import plain, probed
from indelible.config import ModelOptions
from indelible.data.formats import read_records
from indelible.data.pools import demonstration
from indelible.data.records import Message, Query, Record
from indelible.errors import ConfigError, DataError
from indelible.interview import Interview, prepare
from indelible.sweep import fidelity
from indelible.sweep.agreement import Tally, agreement
from indelible.sweep.checks import check
from indelible.sweep.collect import losses, over_seeds, part_by_time
from indelible.sweep.config import Arrange, DataPlan, FidelityOptions, FilePlan, SweepConfig
from indelible.sweep.data import Rows, arranged, as_row, mixed, parts_of, split_rows
from indelible.sweep.dry import Dry, count
from indelible.sweep.gap import further
from indelible.sweep.numbers import mean_row, spearman_rows
from indelible.sweep.places import Places
from indelible.sweep.plan import plan_cells, training_settings
from indelible.sweep.run import read_study
from indelible.sweep.steps import load_trainable, log_likelihoods, one_step, restored

STUDIES = sorted((Path(__file__).parents[2] / "experiments" / "icp_mia").glob("*.yaml"))

STUDY: dict[str, Any] = {
    "name": "try",
    "paper": "Fig. 0",
    "data": {"files": {"own": "rows.jsonl"}, "splits": {"train": 6, "nonmembers": 4}},
    "models": {"base": "builtin:toy", "target": {"from": "base", "rows": "train", "training": {"epochs": 2}}},
    "audit": {"attacks": ["loss", "icp-sp"]},
    "axes": {
        "rate": {"path": "audit.settings.icp-sp.rate", "values": [0.3, 0.5]},
        "tuning": {
            "values": [{"label": "full", "set": {}}, {"label": "LoRA", "set": {"models.target.training.lora_rank": 4}}]
        },
    },
    "seeds": [0, 1],
}


def changed(**changes: Any) -> dict[str, Any]:
    """The study with values at dotted paths (`__` for a dot) put in."""
    study = copy.deepcopy(STUDY)
    for path, value in changes.items():
        *inner, last = path.split("__")
        at = study
        for part in inner:
            at = at.setdefault(part, {})
        at[last] = value
    return study


def record(i: int, group: str = "", prompt: str = "Where is parcel {}?") -> Record:
    said = (Message("user", prompt.format(i)),)
    return Record(f"r{i:03d}", said, f"In depot {i % 7}, shelf {i}.", group=group or f"r{i:03d}")


RECORDS = [record(i) for i in range(30)]


# ------------------------------------------------------------------------------------------------------------- rows


def test_splits_are_disjoint_seeded_and_keep_questions_together() -> None:
    records = [*RECORDS[:10], *(record(i, f"pair{i // 2}") for i in range(10, 20))]
    sizes = {"train": 7, "nonmembers": 6, "pool": 3}
    parts = split_rows(records, sizes, 0, "f")
    ids = {name: {r.id for r in part} for name, part in parts.items()}
    assert {name: len(part) for name, part in ids.items()} == sizes
    assert len(set.union(*ids.values())) == sum(sizes.values())
    for pair in range(5, 10):
        both = {f"r{2 * pair:03d}", f"r{2 * pair + 1:03d}"}
        assert sum(bool(both & part) for part in ids.values()) <= 1
    again = split_rows(records[::-1], sizes, 0, "f")
    assert {name: [r.id for r in part] for name, part in again.items()} == {
        name: [r.id for r in part] for name, part in parts.items()
    }
    assert split_rows(records, sizes, 1, "f") != parts


def test_too_large_splits_say_what_there_is() -> None:
    with pytest.raises(DataError, match=r"f has 30 usable rows .* asks for 31 \(train 20, nonmembers 11\)"):
        split_rows(RECORDS, {"train": 20, "nonmembers": 11}, 0, "f")
    pairs = [record(i, f"pair{i // 2}") for i in range(6)]
    with pytest.raises(DataError, match="nonmembers gets 2 rows of the 3"):
        split_rows(pairs, {"train": 2, "nonmembers": 3}, 0, "f")


SYSTEM, USER, ASSISTANT = Message("system", "Be brief."), Message("user", "A?"), Message("assistant", "B.", scored=True)


@pytest.mark.parametrize(
    ("messages", "chat"),
    [((USER,), False), ((SYSTEM, USER), False), ((SYSTEM, USER, ASSISTANT, USER), True), ((USER,), True), ((), False)],
    ids=["pair", "pair with system", "conversation", "short conversation", "text"],
)
def test_rows_read_back_as_the_same_records(tmp_path: Path, messages: tuple[Message, ...], *, chat: bool) -> None:
    one = Record("a1", messages, "C\n d. ", group="g")
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(as_row(one, chat=chat)) + "\n")
    table = read_records(path, id_column="id", group_column="group")
    assert table.records == (one,)
    assert table.records[0].group == "g"
    assert (table.kind == "chat") == chat


def test_a_larger_share_replaces_more_and_those_too() -> None:
    of, by = RECORDS[:10], RECORDS[10:20]
    little, much = (mixed(of, by, share, 0, "m") for share in (0.3, 0.7))
    assert sum(r in by for r in little) == 3
    assert sum(r in by for r in much) == 7
    assert all(r in much for r in little if r in by)
    assert mixed(of, by, 0, 0, "m") == of
    with pytest.raises(DataError, match="takes 7 rows of 5"):
        mixed(of, by[:5], 0.7, 0, "m")


def test_parts_follow_each_other_and_can_be_put_in_another_order() -> None:
    assert parts_of(7, 3) == [0, 0, 0, 1, 1, 2, 2]
    assert arranged(RECORDS, Arrange(parts=3)) == RECORDS
    moved = arranged(RECORDS, Arrange(parts=3, seed=1))
    assert sorted(moved, key=lambda r: r.id) == RECORDS
    starts = [RECORDS.index(moved[at]) for at in (0, 10, 20)]
    assert sorted(starts) == [0, 10, 20]
    assert starts != [0, 10, 20]
    assert [RECORDS.index(r) for r in moved[:10]] == list(range(starts[0], starts[0] + 10))


def test_repeated_and_long_rows_are_left_out_and_whole_files_drawn(tmp_path: Path) -> None:
    rows = [{"prompt": f"Q{i}", "response": "x" * (i + 1)} for i in range(8)] + [{"prompt": "Q0", "response": "x"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = Rows(tmp_path / "made")
    plan = FilePlan(source=str(path), max_chars=7)
    assert len(read.usable(plan)) == 4  # the line break between prompt and answer counts
    data = DataPlan(files={"a": str(path), "b": {"source": str(path), "rows": 3}}, splits={"train": 2})
    made = read.get(data, 0, "b")
    assert len(made.records) == 3
    assert read_records(made.path, id_column="id", group_column="group").records == made.records
    assert read.get(data, 0, "b") is made


# ------------------------------------------------------------------------------------------------------------- plan


def test_cells_are_the_product_of_axes_and_seeds() -> None:
    cells = plan_cells(check(SweepConfig, STUDY))
    assert len(cells) == 8
    found = {(c.labels["rate"], c.labels["tuning"], c.seed) for c in cells}
    assert found == {(r, t, s) for r in ("0.3", "0.5") for t in ("full", "LoRA") for s in (0, 1)}
    for cell in cells:
        assert cell.audit["settings"] == {"icp-sp": {"rate": float(cell.labels["rate"])}}
        assert cell.models["target"].training.get("lora_rank", 0) == (4 if cell.labels["tuning"] == "LoRA" else 0)
        assert cell.audit["members"] == "train"
        assert cell.audit["base"] == "base"
    trained = [(c.labels["tuning"], c.seed) for c in cells]
    assert trained == [one for one in dict.fromkeys(trained) for _ in range(2)]  # those of one model side by side


WRONG = {
    "unknown key": (changed(axis={}), "unknown setting 'axis'. Did you mean 'axes'?"),
    "unknown key inside": (
        changed(data__files={"own": {"source": "x", "max_char": 3}}),
        "unknown setting of data.files.own 'max_char'. Did you mean 'max_chars'?",
    ),
    "unknown key of a model": (
        changed(models__target={"from": "base", "rows": "train", "epochs": 2}),
        "unknown setting of models.target 'epochs'. Did you mean 'epoch'?",
    ),
    "axis to nowhere": (
        changed(axes={"rate": {"path": "audit.setings.icp-sp.rate", "values": [1]}}),
        "axis 'rate', path audit.setings.icp-sp.rate: unknown setting of an audit 'setings'. Did you mean 'settings'?",
    ),
    "no such setting of an attack": (
        changed(axes={"rate": {"path": "audit.settings.icp-sp.rat", "values": [1]}}),
        "unknown setting of icp-sp 'rat'. Did you mean 'rate'?",
    ),
    "no such model": (
        changed(axes={"rank": {"path": "models.tuned.training.lora_rank", "values": [1]}}),
        "axis 'rank', path models.tuned.training.lora_rank: unknown model 'tuned'.",
    ),
    "no such setting of training": (
        changed(axes={"rank": {"path": "models.target.training.rank", "values": [1]}}),
        "unknown setting of training 'rank'. Did you mean 'lora_rank'?",
    ),
    "no such root": (
        changed(axes={"rank": {"path": "model.target", "values": [1]}}),
        "unknown beginning of a path 'model'. Did you mean 'models'?",
    ),
    "too deep": (
        changed(axes={"n": {"path": "data.splits.train.n", "values": [1]}}), "nothing lies below data.splits.train"
    ),
    "no such set": (changed(audit__members="trained"), "audit.members: unknown set 'trained'. Did you mean 'train'?"),
    "no such model asked": (changed(audit__model="targt"), "audit.model: unknown model 'targt'."),
    "no such attack": (changed(audit__attacks=["los"], axes={}), "unknown attack 'los'. Did you mean 'loss'?"),
    "settings of an attack left out": (
        changed(audit__settings={"min-k": {"k": 0.1}}), "audit.settings for 'min-k', which is not among the attacks"
    ),
    "wrong training": (
        changed(models__target__training={"epoch": 2}, axes={}),
        "training: unknown setting 'epoch'. Did you mean 'epochs'?",
    ),
    "private without epsilon": (
        changed(models__target__training={"dp_delta": 1e-5}, axes={}),
        "--dp-delta is a setting of DP-SGD: give --dp-epsilon with it",
    ),
    "an epoch too late": (changed(models__target__epoch=3), "epoch 3: that training has 2"),
    "trained from itself": (changed(models__base={"from": "target", "rows": "train"}), "it is trained from itself"),
    "own setting": (changed(audit__out="x", axes={}), "audit.out is set by the sweep: leave it out"),
    "shown axis": (
        changed(show={"tables": [{"rows": "rates"}]}), "unknown axis to show 'rates'. Did you mean 'rate'?"
    ),
    "two labels alike": (
        changed(axes={"a": {"path": "audit.max_records", "values": [4, 4]}}), "two values have one label"
    ),
    "wrong value": (
        changed(axes={"a": {"path": "audit.max_records", "values": [1]}}), "a 1: audit: setting 'max_records'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_studies_are_one_clear_line(name: str) -> None:
    study, message = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        plan_cells(check(SweepConfig, study))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- gradient steps


@pytest.fixture(scope="module")
def free() -> Any:
    """The toy as a trainer has it: weights that can be changed."""
    return load_trainable("builtin:toy", ModelOptions(device="cpu", dtype="float32"))[0]


def slow_likelihood(module: Any, model: Any, messages: tuple[Message, ...], target: str) -> torch.Tensor:
    """Sum of log p over the target tokens, by one whole forward pass."""
    encoded = model.encode(Query(messages, target))
    ids = torch.from_numpy(encoded.input_ids)[None]
    logp = module(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    at = torch.from_numpy(encoded.target_positions)
    return logp[at - 1, ids[0, at]].sum()


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_step_is_the_slow_one_and_taken_back_exactly(free: Any, optimiser: Any) -> None:
    records = RECORDS[:3]
    rate, limit = (0.05, 0.7) if optimiser == "sgd" else (1e-3, 0.7)
    other = copy.deepcopy(free.module)
    n = sum(int(free.encode(plain(r)).is_target.sum()) for r in records)
    before = [slow_likelihood(other, free, r.messages, r.target).item() for r in records]
    loss = -sum(slow_likelihood(other, free, r.messages, r.target) for r in records) / n
    loss.backward()
    parameters = list(other.parameters())
    norm = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in parameters))
    with torch.no_grad():
        for p in parameters:
            g = p.grad * min(1.0, limit / norm)
            p -= rate * (g if optimiser == "sgd" else g / (g.abs() + 1e-8))
        slow = [
            float(slow_likelihood(other, free, r.messages, r.target)) - b for r, b in zip(records, before, strict=True)
        ]
    options = FidelityOptions(
        kind="fidelity", records="a", pool="b", optimiser=optimiser, learning_rate=rate, max_grad_norm=limit
    )
    weights = {name: p.detach().clone() for name, p in free.module.state_dict().items()}
    drops, n_tokens = fidelity.step_drops(free, records, options)
    assert drops == pytest.approx(slow, abs=1e-4)
    assert max(abs(d) for d in slow) > 0.01
    assert n_tokens.sum() == n
    assert all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())
    assert all(p.grad is None for p in free.module.parameters())


def test_steps_on_single_records_do_not_see_each_other(free: Any) -> None:
    options = FidelityOptions(kind="fidelity", records="a", pool="b", step="record", learning_rate=1e-4)
    alone = [fidelity.step_drops(free, [r], options)[0][0] for r in RECORDS[:3]]
    together = fidelity.step_drops(free, RECORDS[:3], options)[0]
    assert together == pytest.approx(alone, abs=1e-4)
    assert min(alone) > 0  # a step on a record itself helps it


def test_weights_come_back_when_a_step_fails(free: Any) -> None:
    weights = {name: p.detach().clone() for name, p in free.module.state_dict().items()}
    encoded = [free.encode(plain(r)) for r in RECORDS[:2]]

    def fail() -> None:
        with restored(free) as parameters:
            one_step(free, parameters, encoded, optimiser="sgd", learning_rate=1.0, max_grad_norm=1.0)
            assert not all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())


def test_of_an_adapted_model_the_adapter_steps(lora_toy: Path) -> None:
    model, _ = load_trainable(str(lora_toy), ModelOptions(device="cpu", dtype="float32"))
    weights = {name: p.detach().clone() for name, p in model.module.state_dict().items()}
    with restored(model) as parameters:
        encoded = [model.encode(plain(r)) for r in RECORDS[:2]]
        one_step(model, parameters, encoded, optimiser="sgd", learning_rate=1.0, max_grad_norm=1.0)
        moved = {name for name, p in model.module.state_dict().items() if not torch.equal(p, weights[name])}
        assert moved
        assert all("lora_" in name for name in moved)
    assert all(torch.equal(p, weights[name]) for name, p in model.module.state_dict().items())


def test_probe_drops_are_the_slow_ones(free: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "embed", lambda texts, embedder: np.ones((len(texts), 1), dtype=np.float32))
    records, pool = RECORDS[:2], [*RECORDS[10:13], RECORDS[0]]
    options = FidelityOptions(kind="fidelity", records="a", pool="b", top=5)
    found = fidelity.probe_drops(free, records, pool, options, 0)
    with torch.no_grad():
        for r in records:
            alone = slow_likelihood(free.module, free, r.messages, r.target)
            probes = [probed(r, demonstration(p)).messages for p in pool if p.id != r.id]
            best = max(float(slow_likelihood(free.module, free, m, r.target) - alone) for m in probes)
            assert found[r.id] == pytest.approx(best, abs=1e-4)


def test_batches_are_drawn_without_repetition_while_there_are_enough() -> None:
    batches = fidelity.draw_batches(RECORDS, 3, 8, 0)
    assert [len(b) for b in batches] == [8, 8, 8]
    assert len({r.id for b in batches for r in b}) == 24
    many = fidelity.draw_batches(RECORDS, 10, 16, 0)
    assert all(len({r.id for r in b}) == 16 for b in many)
    assert fidelity.draw_batches(RECORDS[::-1], 3, 8, 0) == batches


def test_the_gap_is_the_loss_before_less_after_a_training(free: Any) -> None:
    config = training_settings(
        {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "autocast": "off", "schedule": "constant"}, 0
    )
    weights = {name: p.detach().clone() for name, p in free.module.state_dict().items()}
    before, after, n_tokens = further(free, RECORDS[:8], config)
    assert all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())
    assert not free.module.training
    with torch.no_grad():
        slow = [-float(slow_likelihood(free.module, free, r.messages, r.target)) for r in RECORDS[:8]]
    assert before * n_tokens == pytest.approx(slow, abs=1e-3)
    assert (after < before).all()


# -------------------------------------------------------------------------------------------------------- the numbers


def test_mean_and_its_interval() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    row = mean_row("a", "target", "m", values, list("wxyz"), level=0.95, member=True)
    error = np.std(values, ddof=1) / 2
    assert row.value == 3.75
    assert row.low == pytest.approx(3.75 - 3.182446 * error, abs=1e-4)
    twice = mean_row("a", "target", "m", values * 2, list("wxyz") * 2, level=0.95, member=True)
    assert (twice.value, twice.low) == (row.value, pytest.approx(row.low))  # a group counts once
    assert mean_row("a", "target", "m", [math.nan], ["w"], level=0.95, member=True).reason


def test_spearman_is_pearson_of_ranks_with_a_wider_fisher_interval() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=160)
    y = x + rng.normal(size=160)
    row, p_row = spearman_rows("a", x, y, level=0.95)
    ranks = [np.argsort(np.argsort(v)) for v in (x, y)]
    rho = np.corrcoef(*ranks)[0, 1]
    half = 1.959964 * math.sqrt((1 + rho**2 / 2) / 157)
    assert row.value == pytest.approx(rho, abs=1e-6)
    assert row.high == pytest.approx(math.tanh(math.atanh(rho) + half), abs=1e-6)
    assert p_row.value is not None
    assert p_row.value < 1e-10
    assert spearman_rows("a", x, np.ones(160), level=0.95)[0].reason
    assert spearman_rows("a", x[:3], y[:3], level=0.95)[0].value is None


def test_numbers_over_seeds_keep_the_two_spreads_apart() -> None:
    common = {
        "axes": {"rate": "0.3"},
        "attack": "loss",
        "model": "target",
        "metric": "auc",
        "part": None,
        "block": None,
    }
    rows = [
        {**common, "seed": 0, "value": 0.7, "low": 0.6, "high": 0.8, "reason": None},
        {**common, "seed": 1, "value": 0.9, "low": 0.8, "high": 1.0, "reason": None},
        {**common, "seed": 2, "value": None, "low": None, "high": None, "reason": "too few"},
    ]
    (row,) = over_seeds(rows)
    assert row["seed"] is None
    assert (row["value"], row["low"], row["high"]) == pytest.approx((0.8, 0.7, 0.9))
    assert (row["seed_low"], row["seed_high"], row["n_seeds"]) == (0.7, 0.9, 2)
    assert row["seed_sd"] == pytest.approx(np.std([0.7, 0.9], ddof=1))
    assert row["note"] == "1 of 3 seeds have no value (too few)"


def test_losses_are_those_of_either_side() -> None:
    records = pd.DataFrame({"record_id": list("abc"), "member": [True, False, False], "group": list("abc")})
    scores = pd.DataFrame(
        {"record_id": list("abc"), "attack": "loss", "model": "target", "score": [-1.0, -2.0, -4.0], "reason": None}
    )
    found = {row["metric"]: row["value"] for row in losses(records, scores, 0.95)}
    assert found == {"loss_members": 1.0, "loss_nonmembers": 3.0}


def test_parts_go_by_when_a_record_was_seen_last() -> None:
    log = pd.DataFrame({"step": [1, 1, 2, 2, 3, 3, 4, 4], "epoch": [1] * 4 + [2] * 4, "record_id": list("abcddbca")})
    assert part_by_time(log, 2) == {"d": 0, "b": 0, "c": 1, "a": 1}


def test_pairs_are_counted_in_the_papers_order() -> None:
    tally = Tally()
    tally.add((0.5, 0.4, 0.6), (0.8, 0.7, 0.9))
    assert tally.word == "agrees"
    tally.add((0.5, 0.4, 0.6), (0.55, 0.45, 0.65))
    tally.add(None, (0.8, 0.7, 0.9))
    assert (tally.same, tally.against, tally.unclear) == (1, 0, 1)
    tally.add((0.8, 0.7, 0.9), (0.5, 0.4, 0.6))
    assert tally.word == "disagrees"
    assert Tally().word == "cannot tell"


def test_agreement_with_a_table_and_with_shapes() -> None:
    study = changed(
        axes={"k": {"path": "audit.settings.icp-sp.k", "values": [1, 5, 9]}},
        paper_values=[{"where": "Table X", "values": {"loss": 0.6, "icp-sp": 0.9}, "only": {"k": ["5"]}}],
        expect=[
            {"where": "Fig. X", "shape": "rises", "x": "k", "lines": ["icp-sp"]},
            {"where": "Fig. Y", "shape": "peak", "x": "k", "lines": ["icp-sp"], "between": [4, 6]},
            {"where": "Fig. Z", "shape": "above", "x": "k", "lines": ["icp-sp"], "than": ["loss"]},
        ],
    )
    values = {"loss": (0.6, 0.6, 0.6), "icp-sp": (0.5, 0.9, 0.7)}
    rows = [
        {"axes": {"k": k}, "seed": None, "attack": attack, "model": "target", "metric": "auc", "value": v,
         "low": v - 0.01, "high": v + 0.01}
        for attack, column in values.items() for k, v in zip(("1", "5", "9"), column, strict=True)
    ]  # fmt: skip
    table, rises, peak, above = agreement(Places(check(SweepConfig, study), rows))
    assert (table["word"], table["same"]) == ("agrees", 1)
    assert "highest: icp-sp in both" in table["line"]
    assert rises["word"] == "agrees"
    assert (peak["same"], peak["against"]) == (2, 0)
    assert (above["same"], above["against"], above["word"]) == (2, 1, "agrees in part")
    assert Places(check(SweepConfig, study), rows).paper({"attack": "loss", "k": "5"}, "auc") == 0.6
    assert Places(check(SweepConfig, study), rows).paper({"attack": "loss", "k": "1"}, "auc") is None


# --------------------------------------------------------------------------------------------------------------- cost


def test_counting_without_a_model_counts_what_a_model_computes(toy: Any) -> None:
    from indelible.attacks import make_attack
    from indelible.attacks.base import Resources
    from indelible.config import AuditConfig

    attacks = [make_attack("loss"), make_attack("icp-sp", {"k": 3}), make_attack("icp-sp-lowest")]
    records = RECORDS[:4]
    spans = lambda q: toy.encode(q).spans  # noqa: E731
    interview = Interview({"target": toy})
    interview.ask(attacks, prepare(attacks, records, Resources(spans=spans)))
    dry = Dry("x", toy.chat, toy.context_length)
    config = AuditConfig(model="m", members="a", nonmembers="b")
    assert count(attacks, records, RECORDS[10:], {"target": dry}, config, {}, subject="target") == []
    # likelihood masks depend on answers, which are made up here: about, not exactly
    assert dry.tokens == pytest.approx(interview.counts.tokens_computed, rel=0.1)
    before = dry.tokens
    count(attacks[:1], records, RECORDS[10:], {"target": dry}, config, {}, subject="target")
    assert dry.tokens == before  # asked before


# ------------------------------------------------------------------------------------------------------------ studies


def test_there_is_a_study_for_every_table_and_figure() -> None:
    wanted = {
        "comparison", "masking", "mask-rate", "generation", "pool", "peft", "k", "privacy", "label-only", "residual",
        "order", "schedule", "gap", "fidelity",
    }  # fmt: skip
    assert {path.stem for path in STUDIES} == wanted
    said = " ".join(yaml.safe_load(path.read_text())["paper"] for path in STUDIES)
    assert {int(n) for n in re.findall(r"\d+", said)} == set(range(1, 14))  # figures
    assert {*re.findall(r"\b[IV]+\b", said)} == {"I", "II", "III", "IV", "V", "VI", "VII", "VIII"}  # tables


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_studies_plan_and_their_splits_fit(path: Path, tmp_path: Path) -> None:
    config, _ = read_study(str(path), {})
    cells = plan_cells(config)
    assert len(cells) == len(config.seeds) * math.prod(len(axis.values) for axis in config.axes.values())
    made = tmp_path / "data.jsonl"
    text = "".join(
        json.dumps({"prompt": f"Question {i}: what is {i * 37 % 101}?", "response": f"It is {i} of {i * 7919 % 1009}."})
        + "\n"
        for i in range(900)
    )
    made.write_text(text)
    files = {name: {"source": str(made), "rows": plan.rows} for name, plan in config.data.files.items()}
    rows = Rows(tmp_path / "made")
    for cell in cells:
        data = check(DataPlan, {**cell.data.model_dump(mode="json"), "files": files})
        for name in (*data.splits, *data.mixes):
            got = rows.get(data, cell.seed, name)
            assert len(got.records) == data.splits[data.mixes[name].of if name in data.mixes else name]


def test_data_is_a_file_or_a_folder_in_place_of_data(tmp_path: Path) -> None:
    study = changed(data__files={"own": "data/a/rows.jsonl", "other": "data/b/rows.jsonl", "far": "/x/rows.jsonl"})
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    config, _ = read_study(str(path), {}, "mine.jsonl")
    assert [f.source for f in config.data.files.values()] == ["mine.jsonl", "data/b/rows.jsonl", "/x/rows.jsonl"]
    config, given = read_study(str(path), {"seeds": [5]}, str(tmp_path))
    assert [f.source for f in config.data.files.values()] == [
        str(tmp_path / "a/rows.jsonl"), str(tmp_path / "b/rows.jsonl"), "/x/rows.jsonl",
    ]  # fmt: skip
    assert config.seeds == (5,)
    assert given["--data"] == str(tmp_path)


def test_likelihoods_are_sums_over_the_answer(toy: Any) -> None:
    sums, n_tokens = log_likelihoods(toy, RECORDS[:2])
    with torch.no_grad():
        slow = [float(slow_likelihood(toy.module, toy, r.messages, r.target)) for r in RECORDS[:2]]
    assert sums == pytest.approx(slow, abs=1e-4)
    assert n_tokens.tolist() == [int(toy.encode(plain(r)).is_target.sum()) for r in RECORDS[:2]]

"""Scores of tabular probes against slow transcriptions, and on a real network of random weights."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from tabular_fakes import Lookup, knows_nothing, make_world

from indelible.attacks.tabular import PROBES, make_probe
from indelible.attacks.tabular_scores import multiple_choice, score_rows, tabular_scores
from indelible.errors import DataError, ModelError

ALL = tuple(PROBES)


@pytest.fixture(scope="module")
def network():
    """The package's architecture, tiny, with random weights."""
    pytest.importorskip("tabicl", reason="the extra 'tabular' is not installed")
    from indelible.models.tabular_tabicl import build_tabicl

    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "col_num_blocks": 1, "col_nhead": 2, "col_num_inds": 4, "row_num_blocks": 1}
    more = {"row_nhead": 2, "row_num_cls": 2, "icl_num_blocks": 1, "icl_nhead": 2, "max_classes": 10}
    model = build_tabicl({**sizes, **more})
    with torch.no_grad():
        for name, value in model.module.named_parameters():
            if value.dim() > 1:
                value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name))))
    return model


def slow_choice(logprobs, shown, choices, own):
    """Textbook form, one row at a time, in exact sums of probabilities."""
    out = []
    for lp, seen, candidates, y in zip(logprobs, shown, choices, own, strict=True):
        open_ = [c for c in candidates if seen[c]]
        if y not in open_ or len(open_) < 2:
            out.append((math.nan, math.nan))
            continue
        total = math.fsum(math.exp(lp[c]) for c in open_)
        p = {c: math.exp(lp[c]) / total for c in open_}
        out.append((math.log(p[y]), math.log(p[y]) - math.log(max(p[c] for c in open_ if c != y))))
    return np.array(out).T


def test_multiple_choice_is_the_probability_among_the_labels_shown():
    rng = np.random.default_rng(0)
    logprobs = np.log(rng.dirichlet(np.ones(12), size=300))
    choices = np.stack([np.sort(rng.choice(12, 6, replace=False)) for _ in range(300)])
    own = choices[np.arange(300), rng.integers(6, size=300)]
    shown = rng.random((300, 12)) < 0.7
    logprob, margin, reason = multiple_choice(logprobs, shown, choices, own)
    slow_logprob, slow_margin = slow_choice(logprobs, shown, choices, own)
    np.testing.assert_allclose(logprob, slow_logprob, atol=1e-10)
    np.testing.assert_allclose(margin, slow_margin, atol=1e-10)
    assert np.array_equal(np.isnan(logprob), [why is not None for why in reason])
    absent = ~shown[np.arange(300), own]
    assert 50 < absent.sum() < 130
    assert all("no row of its label" in why for why in reason[absent])


def test_scores_of_sure_answers_do_not_tie_where_float32_runs_out():
    gaps = np.array([20.0, 25.0, 60.0, 300.0])
    logprobs = np.stack([np.zeros(4), -gaps], axis=1)
    assert (torch.tensor(logprobs, dtype=torch.float32).log_softmax(-1)[:, 0] == 0).all()
    full = np.ones((4, 2), bool)
    logprob, margin, _ = multiple_choice(logprobs, full, np.tile([0, 1], (4, 1)), np.zeros(4, np.int64))
    np.testing.assert_allclose(logprob, -np.exp(-gaps), rtol=1e-6)
    assert (np.diff(logprob) > 0).all()
    np.testing.assert_allclose(margin, gaps)


def test_what_cannot_be_scored_is_nan_with_its_reason():
    logprobs = np.log(np.full((4, 3), 1 / 3))
    logprobs[1, 2] = np.nan
    logprobs[2, 1] = -np.inf
    shown = np.array([[1, 0, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]], bool)
    logprob, margin, reason = multiple_choice(logprobs, shown, np.tile([0, 1, 2], (4, 1)), np.zeros(4, np.int64))
    assert np.isnan(logprob).all()
    assert np.isnan(margin).all()
    assert ["only one" in reason[0], "not finite" in reason[1], "not finite" in reason[2], "no row" in reason[3]] == [
        True
    ] * 4


def slow_scores(model, world, rows, names):
    """One probe, one row, one question at a time."""
    out = []
    for name in names:
        probe = make_probe(name)
        for row in rows:
            if probe.unfit(world, np.array([row]))[0] is not None:
                out.append((row, name, math.nan, math.nan))
                continue
            queries = probe.contexts(world, np.array([row]))
            lp = model.logits(queries).detach().double().log_softmax(-1)[0, 0].numpy()
            shown = [c in queries.context_y[0].tolist() for c in range(world.n_classes)]
            pair = slow_choice([lp], [shown], [world.choices[row]], [world.target[row]])
            out.append((row, name, float(pair[0, 0]), float(pair[1, 0])))
    return pd.DataFrame(out, columns=["row", "probe", "logprob", "margin"])


@pytest.mark.parametrize("n_classes", [2, 5])
def test_scores_of_a_network_are_those_of_one_question_at_a_time(network, n_classes):
    world = make_world(n_classes=n_classes, seed=1)
    rows = np.array([41, 3, 55, 12, 60, 79])  # members, non-members, context (55, 60) and the reserve
    fast = score_rows(network, world, rows, ALL)
    slow = slow_scores(network, world, rows, ALL)
    assert fast["row"].tolist() == slow["row"].tolist()
    assert fast["probe"].tolist() == slow["probe"].tolist()
    np.testing.assert_allclose(fast["logprob"], slow["logprob"], atol=1e-4)
    np.testing.assert_allclose(fast["margin"], slow["margin"], atol=1e-4)
    lost = fast[fast["logprob"].isna()]
    assert set(zip(lost["probe"], lost["row"], strict=True)) >= {("train-context", 55), ("train-context", 60)}
    assert lost["reason"].notna().all()
    assert fast.loc[fast["logprob"].notna(), "reason"].isna().all()


def test_many_classes_are_asked_among_ten(network):
    world = make_world(sizes=(16, 16, 24, 30), n_classes=12, seed=2)
    with pytest.raises(ModelError, match="holds 10 classes"):
        score_rows(network, world, [0, 1], ["copy"])
    wide = Lookup.of(world, world.split.members)
    fast = score_rows(wide, world, np.arange(20), ("copy", "neutral", "erased", "wrong-majority", "train-context"))
    slow = slow_scores(wide, world, np.arange(20), ("copy", "neutral", "erased", "wrong-majority", "train-context"))
    np.testing.assert_allclose(fast["logprob"], slow["logprob"], atol=1e-4)


def test_rows_with_candidates_of_their_own_are_asked_by_them(network):
    world = make_world(n_classes=6, seed=6)
    rng = np.random.default_rng(0)
    others = [rng.choice(np.delete(np.arange(6), own), 2, replace=False) for own in world.target]
    choices = np.sort(np.column_stack([world.target, np.stack(others)]), axis=1)
    world = dataclasses.replace(world, choices=choices)
    fast, slow = (score(network, world, np.arange(25), ALL) for score in (score_rows, slow_scores))
    np.testing.assert_allclose(fast["logprob"], slow["logprob"], atol=1e-4)
    assert fast.loc[fast["probe"] == "erased", "logprob"].nunique() > 6


def test_a_network_reads_label_rows_as_a_set(network):
    world = make_world(n_classes=4, seed=3)
    rows = np.arange(50)
    scores = score_rows(network, world, rows, ["copy", "row-order"]).set_index(["probe", "row"])["logprob"]
    assert (scores["copy"] - scores["row-order"]).abs().max() < 1e-4
    assert scores["copy"].std() > 1e-3, "rows are told apart"


def test_erased_rows_of_a_class_score_exactly_the_same(network):
    world = make_world(n_classes=3, seed=4)
    scores = score_rows(network, world, np.arange(50), ["erased"])
    for label in range(3):
        own = scores.loc[world.target[:50] == label, "logprob"]
        assert own.nunique() == 1, "not even the last bit may tell rows apart"
    assert scores["logprob"].nunique() > 1
    many = make_world(sizes=(20, 20, 15, 30), n_classes=15, seed=4)
    lookup = Lookup({})
    lines = score_rows(lookup, many, np.arange(40), ["erased"])["logprob"].to_numpy()
    keys = [(int(many.target[i]), many.choices[i].tobytes()) for i in range(40)]
    assert len({(k, v) for k, v in zip(keys, lines, strict=True)}) == len(set(keys))


def test_parameters_given_replace_the_models_own_for_the_call(network):
    world = make_world(seed=5)
    rows, before = np.arange(10), network.fingerprint
    changed = network.clone()
    with torch.no_grad():
        for value in changed.module.parameters():
            value.mul_(1.2)
    state = {name: value.detach().clone() for name, value in changed.module.named_parameters()}
    given = score_rows(network, world, rows, ["copy"], state)
    pd.testing.assert_frame_equal(given, score_rows(changed, world, rows, ["copy"]))
    assert (given["logprob"] != score_rows(network, world, rows, ["copy"])["logprob"]).any()
    assert network.fingerprint == before
    with pytest.raises(ModelError, match="do not fit the network"):
        score_rows(network, world, rows, ["copy"], {"no.such": torch.zeros(1)})
    broken = {name: torch.full_like(value, math.nan) for name, value in state.items()}
    lost = score_rows(network, world, rows, ["copy"], broken)
    assert lost["logprob"].isna().all()
    assert lost["reason"].str.contains("not finite").all()


def test_rows_that_reach_the_model_as_equal_features_are_refused(network):
    world = make_world()
    encoded = world.encoded.copy()
    encoded[7] = encoded[3]
    same = dataclasses.replace(world, encoded=encoded)
    for name in ("copy", "neutral", "train-context"):
        with pytest.raises(ModelError, match="3 and 7"):
            score_rows(network, same, np.arange(10), [name])
    assert len(score_rows(network, same, np.arange(10), ["erased"])) == 10
    with pytest.raises(DataError, match="more than once"):
        score_rows(network, world, [1, 1], ["copy"])


def test_a_class_missing_from_the_fresh_context_is_named():
    world = make_world(sizes=(20, 30, 12, 9), n_classes=3, seed=1)
    target = world.target.copy()
    target[world.split.reserve] = np.arange(9) % 2
    world = dataclasses.replace(world, target=target, choices=np.tile(np.arange(3), (len(target), 1)))
    lines = score_rows(knows_nothing(), world, np.arange(50), ["fresh-context"])
    third = target[:50] == 2
    assert lines["logprob"].isna().to_numpy().tolist() == third.tolist()
    assert lines.loc[third, "reason"].str.contains("no row of its label").all()
    np.testing.assert_allclose(lines.loc[~third, "logprob"], math.log(1 / 2))


def frames(seed=0, names=("copy", "neutral", "foreign", "row-order", "erased", "train-context"), n=15):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(100)[:n]
    parts = [
        {"row": rows, "probe": name, "logprob": -rng.exponential(size=n), "margin": rng.normal(size=n)}
        for name in names
    ]
    made = pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
    return made.assign(reason=None)


def shaken(frame, seed=9):
    return frame.sample(frac=1.0, random_state=seed).reset_index(drop=True)


def test_calibrated_scores_and_the_suite_are_transcribed():
    tuned = frames(0)
    base = frames(0).assign(logprob=lambda f: f["logprob"] * 0.3 - 0.1, margin=lambda f: f["margin"] + 2.0)
    found = tabular_scores(tuned, shaken(base))
    score = found.set_index(["attack", "model", "row"])["score"]
    t, b = (f.set_index(["probe", "row"]) for f in (tuned, base))
    names = tuned["probe"].unique()
    for row in tuned["row"].unique():
        for name in names:
            lp, mg = t.loc[(name, row), "logprob"], t.loc[(name, row), "margin"]
            lp0, mg0 = b.loc[(name, row), "logprob"], b.loc[(name, row), "margin"]
            expected = {f"{name}:raw": lp, f"{name}:margin-raw": mg}
            if name != "row-order":
                expected |= {name: lp - lp0, f"{name}:margin": mg - mg0}
            for attack, value in expected.items():
                assert score[attack, "target", row] == pytest.approx(value, abs=1e-12)
            assert score[f"{name}:raw", "base", row] == lp0
            assert score[f"{name}:margin-raw", "base", row] == mg0
        suite = [t.loc[(n, row), "logprob"] - b.loc[(n, row), "logprob"] for n in ("copy", "neutral", "foreign")]
        assert score["suite:mean", "target", row] == pytest.approx(math.fsum(suite) / 3)
        assert score["suite:min", "target", row] == pytest.approx(min(suite))
        raw = [b.loc[(n, row), "logprob"] for n in ("copy", "neutral", "foreign")]
        assert score["suite:mean-raw", "base", row] == pytest.approx(math.fsum(raw) / 3)
        assert score["suite:min-raw", "base", row] == pytest.approx(min(raw))
    assert found.columns.tolist() == ["row", "attack", "model", "score", "reason"]
    assert len(found) == 15 * (6 * 4 + 5 * 2 + 2 * 3)
    assert not found.duplicated(["row", "attack", "model"]).any()
    assert found["reason"].isna().all()


def test_a_missing_score_takes_what_rests_on_it_with_its_reason():
    tuned, base = frames(1), frames(2)
    first = tuned["row"].iloc[0]
    gone = (tuned["row"] == first) & (tuned["probe"] == "neutral")
    tuned.loc[gone, ["logprob", "margin", "reason"]] = [np.nan, np.nan, "was told so"]
    of_base = (base["probe"] == "copy") & (base["row"] == base["row"].iloc[3])
    base.loc[of_base, ["logprob", "margin", "reason"]] = [np.nan, np.nan, "unknown there"]
    base["row"] = tuned["row"]
    found = tabular_scores(tuned, base).set_index(["attack", "model", "row"])
    assert np.isnan(found.loc[("neutral", "target", first), "score"])
    assert found.loc[("neutral", "target", first), "reason"] == "was told so"
    assert found.loc[("suite:mean", "target", first), "reason"] == "neutral: was told so"
    fourth = tuned["row"].iloc[3]
    assert found.loc[("copy", "target", fourth), "reason"] == "base model: unknown there"
    assert np.isfinite(found.loc[("copy:raw", "target", fourth), "score"])
    assert found["score"].isna().sum() == found["reason"].notna().sum()
    tuned.loc[tuned["probe"] == "neutral", ["logprob", "margin"]] = np.nan
    tuned.loc[tuned["probe"] == "neutral", "reason"] = "never"
    suite = tabular_scores(tuned, frames(1)).set_index(["attack", "model"]).loc[("suite:mean", "target"), "score"]
    assert np.isfinite(suite).all(), "a probe that cannot be asked at all is left out of the suite"


def test_without_a_base_only_raw_scores_exist():
    found = tabular_scores(frames(), None)
    assert set(found["model"]) == {"target"}
    lost = set(found.loc[found["score"].isna(), "attack"])
    assert "copy" in lost
    assert "suite:min" in lost
    assert not {a for a in lost if a.endswith("raw")}
    assert set(found.loc[found["score"].isna(), "reason"]) == {"no base model was given"}


def test_copies_are_in_the_suite_only_where_they_are_no_second_copy():
    tuned = frames(0, ("copy", "neutral", "copies"))
    base = tuned.assign(logprob=tuned["logprob"].to_numpy()[::-1])
    apart = tabular_scores(tuned, base).set_index(["attack", "model", "row"])["score"].sort_index()
    same = [f[f["probe"] != "copies"] for f in (tuned, base)]
    same = [pd.concat([f, f[f["probe"] == "copy"].assign(probe="copies")]) for f in same]
    found = tabular_scores(*same).set_index(["attack", "model", "row"])["score"].sort_index()
    for suite, names in ((apart, ("copy", "neutral", "copies")), (found, ("copy", "neutral"))):
        wanted = np.mean([suite.loc[(name, "target")] for name in names], axis=0)
        np.testing.assert_allclose(suite.loc[("suite:mean", "target")], wanted)


def test_tables_that_do_not_fit_are_refused():
    tuned = frames()
    with pytest.raises(DataError, match="not asked with copy"):
        tabular_scores(tuned, tuned[tuned["probe"] != "copy"])
    with pytest.raises(DataError, match="has 14 rows, not the 15"):
        tabular_scores(tuned, tuned.drop(index=0))
    with pytest.raises(DataError, match="twice"):
        tabular_scores(pd.concat([tuned, tuned.iloc[:1]]), tuned)
    with pytest.raises(DataError, match="no known probe \\(magic\\)"):
        tabular_scores(tuned.replace({"probe": {"copy": "magic"}}), None)

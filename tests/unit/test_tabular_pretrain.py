"""Pretraining: made-up tables, the schedule, runs that repeat, stop and go on."""

from __future__ import annotations

import importlib.util
import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from indelible.data.table_columns import squash
from indelible.errors import ConfigError, MissingExtra, ModelError, UserError
from indelible.models.tabular import load_tabular
from indelible.training import tabular_pretrain, tabular_prior
from indelible.training.tabular_pretrain import SMALL, Pretraining, command_of, pretrain, schedule, untrained
from indelible.training.tabular_prior import UNSEEN, Pool, Shapes, check_prior, gain, make_block, seeded, standardised

TINY = {**SMALL, "embed_dim": 8, "col_num_inds": 4, "icl_num_blocks": 1, "col_nhead": 2, "row_nhead": 2}
SHAPES = Shapes(cells=300, tables=2, min_rows=16, max_rows=40, max_features=4)
SETTINGS = Pretraining(steps=6, shapes=SHAPES, pool=2, reuse=2, network=TINY)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xgboost") is None, reason="the tables need xgboost: extra tabular-pretrain"
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few held-out tables, and blocks that are not drawn from the slow priors."""
    monkeypatch.setattr(tabular_pretrain, "N_HELD_OUT", 2)
    monkeypatch.setattr(tabular_prior, "make_block", block)


def block(shapes: Shapes, seed: int, *, easy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tables of three columns, one of which says the class."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, shapes.max_rows, 3, generator=generator)
    y = torch.randint(0, 2, x.shape[:2], generator=generator)
    x[:, :, 0] = x[:, :, 0].clamp(-2, 2) + 6 * y
    return x, y


def test_the_learning_rate_rises_in_a_line_and_falls_as_a_cosine() -> None:
    shares = [schedule(step, 100, 0.1) for step in range(100)]
    assert shares[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert shares[10] == 1.0
    assert shares[55] == pytest.approx(0.5)
    assert shares[99] == pytest.approx(0.5 * (1 + np.cos(np.pi * 89 / 90)))
    assert all(a > b for a, b in pairwise(shares[10:]))


def test_standardisation_is_the_encodings_own() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 12, 3))
    x[0, :, 2] = 4.0
    x[0, 8, 0], x[0, 9, 1] = 90.0, -300.0
    context, asked = standardised(torch.from_numpy(x[:, :8]), torch.from_numpy(x[:, 8:]))
    mean, std = x[0, :8, :2].mean(0), x[0, :8, :2].std(0)
    np.testing.assert_allclose(context[0, :, :2].numpy(), squash((x[0, :8, :2] - mean) / std), rtol=1e-6)
    np.testing.assert_allclose(asked[0, :, :2].numpy(), squash((x[0, 8:, :2] - mean) / std), rtol=1e-6)
    assert (asked[0, :, 2] == 0).all()


def test_gain_is_what_simple_rules_add_to_the_most_frequent_class() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    linear = (x[:, 0] > 0).long()
    assert 0.4 < gain(x, linear) <= 0.55
    rings = (x.norm(dim=1) > 1.5).long()  # no line parts them, neighbours do
    assert gain(x, rings) > 0.2
    noise = torch.randint(0, 2, (400,), generator=generator)
    assert gain(x, noise) < 0.12
    assert gain(x, torch.zeros(400, dtype=torch.long)) == 0


def test_tables_follow_from_the_seed_and_leave_the_generators_alone() -> None:
    other = make_block(SHAPES, 6)  # importing what it needs draws, too
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    torch.manual_seed(1)
    first = make_block(SHAPES, 5)
    after = np.random.random(), random.random(), torch.rand(1).item()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    torch.manual_seed(1)
    assert after == (np.random.random(), random.random(), torch.rand(1).item())  # noqa: NPY002
    again = make_block(SHAPES, 5)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert first[0].shape != other[0].shape or not torch.equal(first[0], other[0])
    x, y = first
    assert x.shape[:2] == y.shape
    assert x.shape[1] == 40
    assert 2 <= x.shape[2] <= 4
    assert x.isfinite().all()
    assert 0 <= int(y.min()) <= int(y.max()) < 10


def test_easy_tables_can_be_predicted() -> None:
    shapes = replace(SHAPES, max_rows=80)
    found = [gain(x, y) for seed in range(2) for x, y in zip(*make_block(shapes, seed, easy=True), strict=True)]
    assert min(found) > tabular_prior.EASY_GAIN


def test_a_step_sees_fresh_questions_that_follow_from_its_number(quick: None) -> None:
    pool = Pool(SHAPES, 0, "tables", size=2, reuse=2)
    seen = [pool.tables(step) for step in range(8)]
    queries, labels = Pool(SHAPES, 0, "tables", size=2, reuse=2).tables(5)  # asked for without the steps before
    assert torch.equal(queries.query_x, seen[5][0].query_x)
    assert torch.equal(labels, seen[5][1])
    assert len({round(float(q.query_x.sum()), 4) for q, _ in seen}) == 8
    for queries, labels in seen:
        n_rows = queries.context_x.shape[1] + queries.query_x.shape[1]
        assert 16 <= n_rows <= 40
        assert queries.n_classes == 10
        assert queries.context_x.shape[0] * n_rows * 3 <= 300
        shown = [set(y.tolist()) for y in queries.context_y]
        assert all(set(asked.tolist()) - {UNSEEN} <= known for asked, known in zip(labels, shown, strict=True))


def test_a_query_keeps_its_label_through_shuffling_and_renaming(quick: None) -> None:
    pool = Pool(SHAPES, 0, "tables", size=1, reuse=1)
    for step in range(6):
        queries, labels = pool.tables(step)
        for x, y, asked, wanted in zip(queries.context_x, queries.context_y, queries.query_x, labels, strict=True):
            known = wanted != UNSEEN
            rows, codes = torch.cat([x, asked[known]]), torch.cat([y, wanted[known]])
            zero, one = rows[codes == 0], rows[codes == 1]
            parted = [bool(zero[:, j].max() < one[:, j].min() or one[:, j].max() < zero[:, j].min()) for j in range(3)]
            assert sum(parted) == 1


def test_pretraining_lowers_the_loss_and_repeats(quick: None, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=25, learning_rate=2e-2)
    model = pretrain(settings, tmp_path / "a")
    pool = Pool(SHAPES, 0, "other tables", size=8, reuse=1)
    before, after = untrained(settings), load_tabular(f"tabicl:{tmp_path / 'a'}")

    def loss(net: Any) -> float:
        with torch.no_grad():
            parts = [
                F.cross_entropy(net.logits(q)[0], y[0], ignore_index=UNSEEN) for q, y in map(pool.tables, range(8))
            ]
        return float(torch.stack(parts).mean())

    assert loss(after) < loss(before) - 0.3
    assert after.fingerprint == model.fingerprint
    assert pretrain(settings, tmp_path / "b").fingerprint == model.fingerprint
    assert pretrain(replace(settings, seed=1), tmp_path / "c").fingerprint != model.fingerprint
    made = json.loads((tmp_path / "a" / "config.json").read_text())["made"]
    assert made["steps"] == 25
    assert made["command"] == command_of(settings)
    assert 0 <= made["held_out_accuracy"] <= 1
    assert not (tmp_path / "a" / "partial.safetensors").exists()
    assert str(tmp_path) not in json.dumps(made)


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_been_stopped(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    want = pretrain(SETTINGS, tmp_path / "whole").fingerprint
    real = tabular_pretrain._step

    def stopped(*args: Any) -> float:
        if args[-1] == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(tabular_pretrain, "_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        pretrain(SETTINGS, tmp_path / "parts")
    monkeypatch.setattr(tabular_pretrain, "_step", real)
    with pytest.raises(ConfigError, match="a stopped run with other settings"):
        pretrain(replace(SETTINGS, seed=3), tmp_path / "parts")
    assert pretrain(SETTINGS, tmp_path / "parts").fingerprint == want
    assert "going on after step 4" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="a finished model"):
        pretrain(SETTINGS, tmp_path / "parts")
    assert pretrain(SETTINGS, tmp_path / "parts", force=True).fingerprint == want


def test_other_files_and_broken_ones_are_refused(quick: None, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        pretrain(SETTINGS, tmp_path)
    (tmp_path / "partial.safetensors").write_text("no")
    with pytest.raises(ModelError, match="start again with --force"):
        pretrain(SETTINGS, tmp_path)


def test_a_loss_that_is_no_number_stops_it(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: Pretraining) -> Any:
        model = untrained(settings)
        with torch.no_grad():
            model.module.icl_predictor.decoder[2].bias.fill_(float("inf"))  # type: ignore[union-attr]
        return model

    monkeypatch.setattr(tabular_pretrain, "untrained", broken)
    with pytest.raises(UserError, match="diverged at step 1"):
        pretrain(SETTINGS, tmp_path / "m")


def test_settings_out_of_range_are_refused() -> None:
    for changes, message in (
        ({"steps": 0}, "--steps 0"),
        ({"learning_rate": 3.0}, "--learning-rate 3"),
        ({"shapes": replace(SHAPES, max_features=1)}, "--max-features 1"),
        ({"shapes": replace(SHAPES, max_rows=4)}, "--max-rows 4"),
    ):
        with pytest.raises(ConfigError, match=message):
            replace(SETTINGS, **changes)


def test_a_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular_prior.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'indelible\[tabular-pretrain\]'"):
        check_prior()


def test_the_untrained_network_follows_from_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = untrained(SETTINGS)
    with seeded(9):
        pass
    assert untrained(SETTINGS).fingerprint == first.fingerprint
    assert untrained(replace(SETTINGS, seed=1)).fingerprint != first.fingerprint


def test_the_command_line_pretrains(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from indelible.cli import app

    asked: list[Pretraining] = []
    real = tabular_pretrain.pretrain

    def small(settings: Pretraining, out: Path, *, force: bool = False) -> Any:
        asked.append(settings)
        return real(replace(settings, network=TINY), out, force=force)

    monkeypatch.setattr(tabular_pretrain, "pretrain", small)
    out = tmp_path / "m"
    given = ["tabular", "pretrain", "--out", str(out), "--steps", "2", "--seed", "4", "--max-rows", "60"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert asked[0].steps == 2
    assert asked[0].seed == 4
    assert asked[0].shapes.max_rows == 60
    assert asked[0].network == SMALL
    assert load_tabular(f"tabicl:{out}").recipe()["made"]["steps"] == 2

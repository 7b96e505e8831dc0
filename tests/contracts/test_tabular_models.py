"""What every tabular model promises; TabICL in full, the optional ones where their packages are installed."""

from __future__ import annotations

import importlib.util
import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from indelible.errors import ConfigError, DataError, MissingExtra, ModelError
from indelible.models import tabular, tabular_saprpt, tabular_saprpt_cells, tabular_tabicl, tabular_tabpfn
from indelible.models.tabular import (
    TabularModel,
    TabularQueries,
    check_values,
    load_tabular,
    save_tabular,
)
from indelible.models.tabular_identity import check_identity, prove_identity
from indelible.models.tabular_network import grouped, layout_of
from indelible.models.tabular_tabicl import build_tabicl
from indelible.training.tabular_pretrain import SMALL

HAS_TABPFN = importlib.util.find_spec("tabpfn") is not None
HAS_SAP_RPT = importlib.util.find_spec("sap_rpt_oss") is not None
TINY: dict[str, Any] = {**SMALL, "embed_dim": 8, "col_num_inds": 4, "icl_num_blocks": 2, "col_nhead": 2, "row_nhead": 2}
OTHERS: dict[str, dict[str, Any]] = {
    "first version": {
        "col_feature_group": False,
        "col_affine": True,
        "col_target_aware": False,
        "row_rope_interleaved": True,
        "row_num_blocks": 2,
        "zero_init": True,
    },
    "second version": {
        "col_feature_group": "same",
        "col_feature_group_size": 3,
        "col_ssmax": "qassmax-mlp-elementwise",
        "icl_ssmax": "qassmax-mlp-elementwise",
        "row_num_blocks": 2,
        "col_num_blocks": 2,
    },
    "pairs": {"col_feature_group": "valid", "col_feature_group_size": 2, "icl_ssmax": "qassmax-mlp"},
    "ssmax": {"col_ssmax": "ssmax", "icl_ssmax": "ssmax-mlp"},
    "ssmax by element": {"col_ssmax": "ssmax-mlp-elementwise", "icl_ssmax": "qassmax-mlp", "bias_free_ln": True},
    "norm last": {"norm_first": False, "activation": "relu", "col_feature_group": False},
    "norm last, affine": {"norm_first": False, "col_feature_group": False, "col_affine": True},
}


def drawn(config: dict[str, Any], seed: int = 0) -> Any:
    """A network whose every weight is drawn anew, so that none of its parts is silent."""
    torch.manual_seed(seed)
    model = build_tabicl(config)
    with torch.no_grad():
        for p in model.module.parameters():
            if p.requires_grad:
                p.add_(0.05 * torch.randn_like(p))
    return model


def asked(seed: int = 0, n: int = 3, context: int = 12, queries: int = 5, features: int = 7, classes: int = 4) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return TabularQueries(
        torch.randn(n, context, features, generator=generator),
        torch.randint(0, classes, (n, context), generator=generator),
        torch.randn(n, queries, features, generator=generator),
        classes,
    )


@pytest.fixture(scope="module")
def shipped() -> TabularModel:
    return load_tabular("builtin:tabicl-small")


@pytest.fixture
def tiny() -> Any:
    return drawn(TINY)


def test_the_shipped_model_is_small_trained_and_says_how_it_was_made(shipped: TabularModel) -> None:
    assert isinstance(shipped, TabularModel)
    n = sum(p.numel() for p in shipped.module.parameters())
    assert 150_000 <= n <= 1_000_000
    assert shipped.max_classes == 10
    made = shipped.recipe()["made"]
    assert made["command"].startswith("indelible tabular pretrain --out DIR --steps ")
    assert made["held_out_accuracy"] > made["held_out_majority"] + 0.1
    size = sum(f.stat().st_size for f in (Path(tabular.__file__).parent / "tabular_files").iterdir())
    assert size < 4e6


def test_the_shipped_model_learns_a_table_from_its_context(shipped: TabularModel) -> None:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    context, held = order[:100], order[100:400]
    z = ((x - x[context].mean(0)) / x[context].std(0)).astype(np.float32)
    queries = TabularQueries(
        torch.from_numpy(z[context])[None], torch.from_numpy(y[context])[None], torch.from_numpy(z[held])[None], 2
    )
    answers = shipped.logprobs(queries)[0]
    assert (answers.argmax(-1).numpy() == y[held]).mean() > 0.85  # its most frequent class has 0.63


@pytest.mark.parametrize("changes", [{}, *OTHERS.values()], ids=["small", *OTHERS])
def test_logits_are_those_of_the_packages_own_module(changes: dict[str, Any]) -> None:
    model = drawn({**TINY, **changes})
    queries = asked(classes=10)
    whole = torch.cat([queries.context_x, queries.query_x], dim=1)
    with torch.no_grad():
        want = model.module.train()(whole.clone(), queries.context_y)  # in eval mode it answers in bfloat16
        got = model.logits(queries)
    assert want.std() > 0.05
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, *OTHERS.values()], ids=["small", *OTHERS])
def test_queries_do_not_see_each_other_nor_other_questions(changes: dict[str, Any]) -> None:
    model, queries = drawn({**TINY, **changes}), asked()
    with torch.no_grad():
        whole = model.logits(queries)
        for b in range(3):
            for q in range(5):
                alone = model.logits(queries.part(slice(b, b + 1), slice(q, q + 1)))
                torch.testing.assert_close(alone[0, 0], whole[b, q], atol=1e-5, rtol=1e-4)


def test_the_order_of_context_rows_is_a_no_op_and_their_labels_are_not(tiny: Any) -> None:
    queries = asked()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    shuffled = replace(queries, context_x=queries.context_x[:, order], context_y=queries.context_y[:, order])
    relabelled = replace(queries, context_y=queries.context_y[:, order])
    with torch.no_grad():
        before = tiny.logits(queries)
        torch.testing.assert_close(tiny.logits(shuffled), before, atol=1e-4, rtol=0)
        assert (tiny.logits(relabelled) - before).abs().max() > 1e-3


def test_answers_are_float32_and_the_same_in_train_and_eval_mode(tiny: Any) -> None:
    queries = asked()
    with torch.no_grad():
        tiny.module.train()
        training = tiny.logits(queries)
        tiny.module.eval()
        assert torch.equal(tiny.logits(queries), training)
    assert training.dtype == torch.float32
    assert training.shape == (3, 5, 4)


def test_logprobs_are_a_log_softmax_whatever_the_size_of_a_pass(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = asked()
    with torch.no_grad():
        want = tiny.logits(queries).log_softmax(-1)
    whole = tiny.logprobs(queries)
    assert not whole.requires_grad
    torch.testing.assert_close(whole, want)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(3, 5))
    for cells in (1, 7 * 14, 7 * 17 * 2):
        monkeypatch.setattr(tabular, "CELLS", cells)
        torch.testing.assert_close(tiny.logprobs(queries), want, atol=1e-5, rtol=1e-4)


def test_a_state_answers_as_the_same_weights_loaded_do(tiny: Any) -> None:
    queries, other = asked(), drawn(TINY, seed=5)
    state = {name: p.detach() for name, p in other.module.named_parameters()}
    with torch.no_grad():
        got = tiny.logits(queries, state)
        tiny.module.load_state_dict(other.module.state_dict())
        torch.testing.assert_close(tiny.logits(queries), got, atol=1e-6, rtol=1e-6)
    part = {"icl_predictor.decoder.2.bias": torch.full((10,), 3.0)}
    with torch.no_grad():
        moved = tiny.logits(queries, part) - tiny.logits(queries)
    bias = other.module.state_dict()["icl_predictor.decoder.2.bias"]
    torch.testing.assert_close(moved, (3.0 - bias[:4]).expand_as(moved), atol=1e-5, rtol=0)


def test_gradients_reach_every_parameter_and_agree_with_finite_differences(tiny: Any) -> None:
    queries = asked()
    tiny.logits(queries).log_softmax(-1)[..., 0].sum().backward()
    named = {name: p for name, p in tiny.module.named_parameters() if p.requires_grad}
    assert [name for name, p in named.items() if p.grad is None or not bool(p.grad.any())] == []
    name = "col_embedder.in_linear.weight"
    step = torch.zeros_like(named[name])
    step[0, 0] = 1e-2
    with torch.no_grad():
        up, down = (
            tiny.logits(queries, {name: named[name] + sign * step}).log_softmax(-1)[..., 0].sum() for sign in (1, -1)
        )
    assert math.isclose(float(up - down) / 2e-2, float(named[name].grad[0, 0]), rel_tol=0.02, abs_tol=1e-3)


@pytest.mark.parametrize("name", ["small", "second version", "norm last, affine"])
def test_stacked_weights_give_what_each_gives_alone(name: str) -> None:
    changes = OTHERS.get(name, {})
    models = [drawn({**TINY, **changes}, seed) for seed in range(3)]
    states = [{k: p.detach() for k, p in m.module.named_parameters() if p.requires_grad} for m in models]
    stacked = {name: torch.stack([s[name] for s in states]) for name in states[0]}
    queries = asked(n=1)
    wanted = torch.tensor([0, 1, 2, 3, 0])

    def loss(state: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(models[0].logits(queries, state)[0], wanted)

    together = vmap(grad(loss))(stacked)
    for i, state in enumerate(states):
        for name, want in grad(loss)(state).items():
            torch.testing.assert_close(together[name][i], want, atol=1e-5, rtol=1e-3)


def test_a_clone_is_independent(tiny: Any) -> None:
    queries, other = asked(), tiny.clone()
    assert other.fingerprint == tiny.fingerprint
    before = tiny.logprobs(queries)
    with torch.no_grad():
        first = next(p for p in other.module.parameters() if p.requires_grad)
        first += torch.randn(first.shape, generator=torch.Generator().manual_seed(3))  # a constant, the norms take away
    torch.testing.assert_close(tiny.logprobs(queries), before, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(other.logprobs(queries), before)
    assert other.fingerprint != tiny.fingerprint


def test_the_fingerprint_follows_weights_and_settings(tiny: Any) -> None:
    first = tiny.fingerprint
    assert drawn(TINY).fingerprint == first
    assert replace(tiny, name="other", made={"steps": 1}).fingerprint == first
    assert replace(tiny, config={**tiny.config, "row_rope_base": 10.0}).fingerprint != first
    with torch.no_grad():
        tiny.module.icl_predictor.decoder[2].bias[0] += 1e-6
    assert tiny.fingerprint != first


def test_a_saved_model_comes_back_exactly_and_holds_no_pickle(tiny: Any, tmp_path: Path) -> None:
    save_tabular(replace(tiny, made={"steps": 3}), tmp_path / "m")
    assert {f.name for f in (tmp_path / "m").iterdir()} == {"model.safetensors", "config.json"}
    for place in (tmp_path / "m", tmp_path / "m" / "model.safetensors"):
        back = load_tabular(f"tabicl:{place}")
        assert back.fingerprint == tiny.fingerprint
        assert back.recipe()["made"] == {"steps": 3}
        assert torch.equal(back.logprobs(asked()), tiny.logprobs(asked()))


def test_the_packages_own_checkpoint_is_read(tiny: Any, tmp_path: Path) -> None:
    path = tmp_path / "tabicl.ckpt"
    torch.save({"config": TINY, "state_dict": tiny.module.state_dict(), "curr_step": 3}, path)
    assert load_tabular(f"tabicl:{path}").fingerprint == tiny.fingerprint


class _Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, (Path("never-written"),))


def test_a_checkpoint_with_code_in_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"config": TINY, "state_dict": {}, "evil": _Evil()}, tmp_path / "evil.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps({"config": TINY, "evil": _Evil()}, protocol=2))
    for name in ("evil", "plain"):
        with pytest.raises(ModelError, match="cannot be read as weights alone"):
            load_tabular(f"tabicl:{tmp_path / name}.ckpt")
    assert not (tmp_path / "never-written").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tabicl-small", "expected one of builtin:tabicl-small, tabicl:PATH_OR_HUB"),
        ("tabilc:folder", "Did you mean 'tabicl'"),
        ("builtin:tabicl-smal", "Did you mean 'tabicl-small'"),
        ("tabicl:/no/such/folder", "no folder or file"),
        ("tabicl:nowhere", "no folder or file"),
    ],
)
def test_a_wrong_name_gets_one_line(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_tabular(source)
    assert "\n" not in str(caught.value)


def test_a_wrong_folder_gets_one_line(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load_tabular(f"tabicl:{tmp_path}")
    save_tabular(tiny, tmp_path)
    config = tmp_path / "config.json"
    good = json.loads(config.read_text())
    for bad, message in (
        ({**good, "format": 99}, "expected format 1"),
        ({**good, "kind": "tabpfn"}, "load it as tabpfn:PATH"),
        ({**good, "config": {**TINY, "embed_dimm": 8}}, "does not take this config"),
        ({**good, "config": {**TINY, "embed_dim": 16}}, "weights do not fit"),
    ):
        config.write_text(json.dumps(bad))
        with pytest.raises(ModelError, match=message):
            load_tabular(f"tabicl:{tmp_path}")
    config.write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_tabular(f"tabicl:{tmp_path}")


def test_weights_that_are_not_numbers_are_refused(tiny: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        tiny.module.icl_predictor.decoder[2].bias[0] = float("nan")
    save_tabular(tiny, tmp_path)
    with pytest.raises(ModelError, match="not finite"):
        load_tabular(f"tabicl:{tmp_path}")


def test_a_regression_network_is_refused() -> None:
    with pytest.raises(ModelError, match="regression"):
        build_tabicl({**TINY, "max_classes": 0, "num_quantiles": 9})


def test_a_hub_is_asked_for_the_files_of_a_model(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    save_tabular(tiny, tmp_path)
    torch.save({"config": TINY, "state_dict": tiny.module.state_dict()}, tmp_path / "small.ckpt")
    wanted: list[tuple[str, str]] = []

    def download(repository: str, file: str) -> str:
        wanted.append((repository, file))
        if repository == "some/nothing":
            raise LocalEntryNotFoundError("offline")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert load_tabular("tabicl:some/model").fingerprint == tiny.fingerprint
    assert load_tabular("tabicl:some/model/small.ckpt").fingerprint == tiny.fingerprint
    assert wanted == [("some/model", name) for name in ("config.json", "model.safetensors", "small.ckpt")]
    with pytest.raises(ModelError, match="the model hub did not give it"):
        load_tabular("tabicl:some/nothing")


def test_a_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] in {"tabicl", "tabpfn", "sap_rpt_oss"}:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'indelible\[tabular\]'"):
        build_tabicl(TINY)
    with pytest.raises(MissingExtra, match="pip install 'tabpfn"):
        tabular_tabpfn.build_tabpfn({"max_num_classes": 10})
    with pytest.raises(MissingExtra, match=r"pip install .*github\.com/SAP-samples/sap-rpt-1-oss"):
        tabular_saprpt.build_sap_rpt({"layers": 2, "width": 128})


def test_a_device_that_is_not_there_gets_one_line() -> None:
    with pytest.raises(ConfigError, match="expected cpu, cuda"):
        load_tabular("builtin:tabicl-small", device="gpu")


def test_questions_that_do_not_fit_are_refused(tiny: Any) -> None:
    queries = asked()
    with pytest.raises(ModelError, match="expected"):
        replace(queries, context_y=queries.context_y[:, :5])
    with pytest.raises(ModelError, match="two classes at least"):
        replace(queries, n_classes=1)
    with pytest.raises(ModelError, match="holds 10 classes and was asked about 11"):
        tiny.logits(replace(queries, n_classes=11))
    with pytest.raises(ModelError, match="labels 0 to 3; expected codes 0 to 1"):
        tiny.logprobs(replace(queries, n_classes=2))
    broken = queries.query_x.clone()
    broken[0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        check_values(replace(queries, query_x=broken))


def test_equal_queries_of_different_records_are_an_error() -> None:
    queries = asked()
    check_identity(queries)
    same = queries.query_x.clone()
    same[2, 1] = same[0, 3]
    erased = replace(queries, query_x=same)
    with pytest.raises(ModelError, match="queries 3 and 11 reach the model as equal features"):
        check_identity(erased)
    rows = [[f"r{5 * b + q}" for q in range(5)] for b in range(3)]
    with pytest.raises(ModelError, match="queries r3 and r11"):
        check_identity(erased, rows)
    rows[2][1] = "r3"
    check_identity(erased, rows)  # one record asked about twice
    zero = torch.zeros(1, 2, 7)
    zero[0, 1] *= -1
    with pytest.raises(ModelError, match="identity is erased"):
        check_identity(TabularQueries(zero, torch.tensor([[0, 1]]), zero, 2))


def test_a_context_of_copies_keeps_the_query_apart(tiny: Any) -> None:
    three = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    prove_identity(tiny, three)

    class Standardising:
        """Standardises by the question's context, as the packages' own estimators do."""

        name = "standardising"

        def logprobs(self, queries: TabularQueries) -> torch.Tensor:
            mean, std = queries.context_x.mean(1, keepdim=True), queries.context_x.std(1, keepdim=True) + 1e-20
            moved = ((queries.context_x - mean) / std, (queries.query_x - mean) / std)
            return tiny.logprobs(replace(queries, context_x=moved[0], query_x=moved[1]))

    with pytest.raises(ModelError, match="every query gets the same answer"):
        prove_identity(Standardising(), three)  # type: ignore[arg-type]


def test_columns_are_grouped_as_the_layout_says() -> None:
    x = torch.arange(5.0)[None]
    layout = layout_of(build_tabicl(TINY).module)
    assert grouped(x, layout).tolist() == [[[0], [1], [2], [3], [4]]]
    assert grouped(x, replace(layout, grouping="valid", group_size=2)).tolist() == [[[0, 1], [2, 3], [4, 0]]]
    same = grouped(x, replace(layout, grouping="same", group_size=3))
    assert same[0, 0].tolist() == [1, 2, 4]
    assert same[0, 4].tolist() == [0, 1, 3]


# TabPFN v2


@pytest.mark.filterwarnings("ignore")  # the package's own, when it is imported
@pytest.mark.skipif(not HAS_TABPFN, reason="the package tabpfn is not installed")
def test_tabpfn_agrees_with_its_module_where_that_standardises_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = {"emsize": 16, "nlayers": 2, "nhead": 2, "features_per_group": 2, "max_num_classes": 10, "seed": 3}
    model = tabular_tabpfn.build_tabpfn(config)
    with torch.no_grad():
        for p in model.module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    queries = asked(n=2, context=40, features=5)
    standard = model.module.standard_scaler  # type: ignore[operator]
    whole = torch.cat([queries.context_x, queries.query_x], dim=1).transpose(0, 1)
    fitted = standard.fit(whole[:40])
    scaled = standard.transform(whole, fitted_cache=fitted).transpose(0, 1)
    with torch.no_grad():
        want = model.module(whole, queries.context_y.T.float()).transpose(0, 1)[..., :4]
        got = model.logits(replace(queries, context_x=scaled[:, :40], query_x=scaled[:, 40:]))
    assert want.std() > 0.01
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    save_tabular(model, tmp_path)
    assert load_tabular(f"tabpfn:{tmp_path}").fingerprint == model.fingerprint
    check_adapter(model, queries)


def check_adapter(model: TabularModel, queries: TabularQueries) -> None:
    """What an optional model promises, too: independent queries, an order-free context, `state`, clones, gradients."""
    assert isinstance(model, TabularModel)
    with torch.no_grad():
        whole = model.logits(queries)
        alone = model.logits(queries.part(slice(1, 2), slice(2, 3)))
        torch.testing.assert_close(alone[0, 0], whole[1, 2], atol=1e-4, rtol=1e-3)
        order = torch.arange(queries.context_y.shape[1] - 1, -1, -1)
        turned = replace(queries, context_x=queries.context_x[:, order], context_y=queries.context_y[:, order])
        torch.testing.assert_close(model.logits(turned), whole, atol=1e-4, rtol=0)
        other = model.clone()
        for p in other.module.parameters():
            p.mul_(1.01)
        state = {name: p.detach() for name, p in other.module.named_parameters()}
        torch.testing.assert_close(model.logits(queries, state), other.logits(queries))
        assert not torch.allclose(other.logits(queries), whole)
    assert other.fingerprint != model.fingerprint
    model.logits(queries).sum().backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in model.module.parameters())


# sap-rpt


def vectors(texts: Any) -> Any:
    """A stand-in for the embedder: equal texts get equal vectors, others different ones."""
    out = [np.random.default_rng(abs(hash(("v", t))) % 2**32).standard_normal(tabular_saprpt_cells.TEXT) for t in texts]
    return np.asarray(out, np.float32)


def mixed_table() -> Any:
    from indelible.data.tables import Column, Table

    rng = np.random.default_rng(0)
    features = pd.DataFrame(
        {
            "age": [*rng.normal(40, 10, 19), np.nan],
            "town": np.array(["Ulm", "Bonn", "Kiel", None] * 5, object),
            "day": [*rng.integers(9000, 20000, 19).astype(float), np.nan],
        }
    )
    columns = (Column("age", "number", 19, 1), Column("town", "category", 3, 5), Column("day", "date", 19, 1))
    ids = tuple(f"r{i}" for i in range(20))
    target = np.arange(20) % 2
    return Table("people", features, target, "classification", "left", ("no", "yes"), columns, ids, None, ())


def test_sap_rpt_cells_are_frozen_on_the_context() -> None:
    table, context = mixed_table(), np.arange(12)
    cells = tabular_saprpt_cells.fit_cells(table, context, vectors)
    rows = cells.encode(table.features)
    width = tabular_saprpt_cells.CELL
    assert rows.shape == (20, 3 * width + 384)
    assert len(cells.names) == rows.shape[1]
    ages = table.features["age"].to_numpy()
    low, high = np.percentile(ages[:12], [0.5, 99.5])
    kept = ages[:12].clip(low, high)
    want = (np.where(np.isnan(ages), ages[:12].mean(), ages).clip(low, high) - kept.mean()) / kept.std()
    np.testing.assert_allclose(rows[:, 0], want, rtol=1e-5)
    assert (rows[:, width] == -100).all()
    np.testing.assert_allclose(rows[0, width:][tabular_saprpt_cells.VALUE_TEXT], vectors(["Ulm"])[0])
    day = pd.Timestamp("1970-01-01") + pd.Timedelta(days=table.features["day"][0])
    parts = [max(0, day.year - 2000) + 1, day.month, day.day, day.weekday() + 1]
    assert rows[0, 2 * width + 1 : 2 * width + 5].tolist() == parts
    assert rows[19, 2 * width + 1 : 2 * width + 5].tolist() == [0, 0, 0, 0]
    alone = cells.encode(table.features.iloc[[7]])
    np.testing.assert_array_equal(alone[0], rows[7])
    neutral = cells.placeholder()
    assert np.isfinite(neutral).all()
    assert neutral[0] == 0
    np.testing.assert_array_equal(cells.noised(rows, np.random.default_rng(0), 0.0), rows)
    moved = cells.noised(rows, np.random.default_rng(0), 1.0)
    assert (moved[:, 0] != rows[:, 0]).all()
    np.testing.assert_array_equal(moved[:, tabular_saprpt_cells.NAME_TEXT], rows[:, tabular_saprpt_cells.NAME_TEXT])


def test_sap_rpt_takes_a_question_apart_as_its_network_wants_it() -> None:
    table = mixed_table()
    cells = tabular_saprpt_cells.fit_cells(table, np.arange(12), vectors)
    rows = torch.from_numpy(cells.encode(table.features))
    data = tabular_saprpt_cells.network_input(rows[:12], torch.arange(12) % 2, rows[12:15])
    assert data["column_embeddings"].shape == (4, 384)
    np.testing.assert_array_equal(data["column_embeddings"][-1].numpy(), vectors(["left"])[0])
    assert data["text_embeddings"].shape == (15, 4, 384)
    assert not data["text_embeddings"][:, -1].any()
    assert data["target"].tolist() == [*[0, 1] * 6, -100, -100, -100]
    assert (data["number_normalized"][:, 1:] == -100).all()
    assert data["date_year_month_day_weekday"].dtype == torch.int64


class StubNetwork(torch.nn.Module):
    """What sap-rpt's network takes and gives, and how many rows each pass had."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 64))
        self.passes: list[int] = []

    def forward(self, data: dict[str, torch.Tensor], _: bool) -> torch.Tensor:
        self.passes.append(len(data["target"]))
        known = data["number_normalized"].sum(1) + data["text_embeddings"].sum((1, 2))
        return known[:, None] * self.weight


def test_sap_rpt_is_proved_on_rows_of_a_table_and_asks_many_at_once() -> None:
    """Not every vector is a row of its cells, and a column is hundreds of numbers but one cell."""
    network = StubNetwork()
    model = tabular_saprpt.SapRptModel("sap-rpt:stub", network, {"layers": 2, "width": 128}, embed=vectors)
    table = mixed_table()
    rows = model.encoder(table, np.arange(12)).encode(table.features)
    prove_identity(model, rows[:3])
    with pytest.raises(ModelError, match="every query gets the same answer"):
        prove_identity(model, rows[[0, 0, 0]])
    network.passes.clear()
    held = torch.from_numpy(rows)
    queries = TabularQueries(held[None, :12], torch.arange(12)[None] % 2, held.repeat(20, 1)[None], 2)
    assert model.logprobs(queries).shape == (1, 400, 2)
    assert network.passes == [412]


def test_texts_become_the_means_of_the_embedders_token_vectors() -> None:
    from transformers import AutoModel, AutoTokenizer

    from indelible.models.builtin import embedder_folder

    texts = ["a red car", "invoice number", "a red car", "nan"]
    got = tabular_saprpt_cells.embed_texts(texts)
    assert got.shape == (4, tabular_saprpt_cells.TEXT)
    np.testing.assert_array_equal(got[0], got[2])
    tokenizer, network = (kind.from_pretrained(embedder_folder()) for kind in (AutoTokenizer, AutoModel))
    for text, vector in zip(texts, got, strict=True):
        with torch.no_grad():
            states = network.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=2e-3)


def test_sap_rpt_takes_so_many_columns_and_no_more() -> None:
    from indelible.data.tables import Column

    table = mixed_table()
    many = replace(table, columns=tuple(Column(f"c{i}", "number", 2, 0) for i in range(500)))
    with pytest.raises(DataError, match="500 features; sap-rpt takes 499"):
        tabular_saprpt_cells.fit_cells(many, np.arange(3), vectors)


def test_sap_rpt_weights_repeat_the_last_layer(tmp_path: Path) -> None:
    names = ["in_context_encoder.0.a", "in_context_encoder.1.a", "output_head_classif.weight"]
    state = {f"module.{name}": torch.full((2,), float(i)) for i, name in enumerate(names)}
    state["module.embeddings.number_embeddings.weight"] = torch.zeros(128, 1)
    torch.save(state, tmp_path / "w.pt")
    config, read = tabular_saprpt._read_checkpoint(tmp_path / "w.pt")
    assert config == {"layers": 2, "width": 128}
    assert read["in_context_encoder.0.a"].tolist() == [1, 1]
    torch.save({"x": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ModelError, match="cross-entropy"):
        tabular_saprpt._read_checkpoint(tmp_path / "other.pt")


@pytest.mark.filterwarnings("ignore")  # the package's own, when it is imported
@pytest.mark.skipif(not HAS_SAP_RPT, reason="the package sap_rpt_oss is not installed")
def test_sap_rpt_answers_with_its_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = replace(tabular_saprpt.build_sap_rpt({"layers": 2, "width": 128}), embed=vectors)
    table = mixed_table()
    rows = torch.from_numpy(model.encoder(table, np.arange(12)).encode(table.features))
    queries = TabularQueries(
        rows[:12].expand(2, -1, -1), torch.arange(24).reshape(2, 12) % 3, rows[12:18].reshape(2, 3, -1), 3
    )
    data = tabular_saprpt_cells.network_input(queries.context_x[1], queries.context_y[1], queries.query_x[1])
    with torch.no_grad():
        want = model.module.eval()(data, False)[12:, :3]
        torch.testing.assert_close(model.logits(queries)[1], want, atol=1e-5, rtol=1e-4)
    copies = rows[12:15, None].expand(-1, 2, -1)
    answers = model.logprobs(TabularQueries(copies, torch.tensor([[0, 1]] * 3), rows[12:15, None], 2))
    assert (answers[0] - answers[1]).abs().max() > 1e-6  # copies do not erase the query
    save_tabular(model, tmp_path)
    assert load_tabular(f"sap-rpt:{tmp_path}").fingerprint == model.fingerprint
    check_adapter(model, queries)


def test_optional_models_need_a_file_that_is_there() -> None:
    for source in ("sap-rpt:/no/file.pt", "tabpfn:/no/file.ckpt"):
        with pytest.raises(ModelError, match="no folder or file"):
            load_tabular(source)
    assert tabular_tabicl.KIND == "tabicl"

"""What a cell's key holds, which cells run, and what they will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweep_fakes import RECORDS, changed

from indelible.attacks import make_attack
from indelible.checked import check
from indelible.config import AuditConfig
from indelible.errors import DataError
from indelible.selection import FORGIVING, asked_by_name, choose_attacks
from indelible.sweep import code, cost
from indelible.sweep.bench import Bench
from indelible.sweep.config import SweepConfig
from indelible.sweep.data import Rows, as_row
from indelible.sweep.dry import Dry, count
from indelible.sweep.plan import plan_cells

# ----------------------------------------------------------------------------------------------------------- sources


def test_an_audit_hangs_on_what_it_imports_and_a_training_on_less() -> None:
    audit, training = set(code.sources("indelible.audit")), set(code.sources("indelible.training.run"))
    assert {"indelible.attacks.context", "indelible.models.causal", "indelible.stats.blind"} <= audit
    assert {"indelible.training.sft", "indelible.models.causal", "indelible.training.peft"} <= training
    assert "indelible.attacks.context" not in training
    assert not any(name.startswith(("indelible.report", "indelible.cli")) for name in audit | training)


def test_a_changed_source_is_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "indelible.a": "import os\n\ndef f():\n    from indelible.b import g\n",
        "indelible.b": "from .c import h",
        "indelible.c": "x = 1",
        "indelible.d": "y = 1",
    }

    def write(**changes: str) -> str:
        for name, text in {**texts, **{f"indelible.{k}": v for k, v in changes.items()}}.items():
            (tmp_path / f"{name}.py").write_text(text)
        code.code_digest.cache_clear()
        return code.code_digest("indelible.a")

    def source(name: str) -> Path | None:
        path = tmp_path / f"{name}.py"
        return path if path.exists() else None

    monkeypatch.setattr(code, "_source", source)
    before = write()
    assert write() == before
    assert write(d="y = 2") == before
    assert write(c="x = 2") != before
    assert set(code.sources("indelible.a")) == {"indelible.a", "indelible.b", "indelible.c"}
    code.code_digest.cache_clear()


def bench_of(tmp_path: Path, **changes: Any) -> Bench:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(as_row(r, chat=False)) + "\n" for r in RECORDS))
    files = {"own": {"source": str(path), "id_column": "id", "group_column": "group"}}
    study = changed(data__files=files, axes={}, seeds=[0], **changes)
    return Bench(check(SweepConfig, study), tmp_path / "work", Rows(tmp_path / "data"))


def test_a_key_goes_by_what_named_files_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes, filler = tmp_path / "probes.jsonl", tmp_path / "t5"
    filler.mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()  # a folder that happens to be called as a setting's value is

    def keys(**settings: Any) -> str:
        bench = bench_of(tmp_path, audit={"attacks": ["icp-sp", "spv"], "settings": settings})
        (cell,) = plan_cells(bench.config)
        return bench.cell_key(cell)

    def key() -> str:
        return keys(**{"icp-sp": {"probe_file": "probes.jsonl"}, "spv": {"filler": "t5"}})

    probes.write_text("one")
    (filler / "model.bin").write_text("one")
    before = key()
    assert key() == before
    probes.write_text("two")
    middle = key()
    assert middle != before
    (filler / "model.bin").write_text("two")
    assert key() != middle
    plain = keys(spv={"filler": "base"})
    (tmp_path / "base" / "x").write_text("new")
    assert keys(spv={"filler": "base"}) == plain


def test_other_source_is_another_cell_and_another_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path)
    (cell,) = plan_cells(bench.config)
    cell_key, training = bench.cell_key(cell), bench.key(cell, "target")
    monkeypatch.setattr("indelible.sweep.bench.code_digest", lambda module: f"changed {module == 'indelible.audit'}")
    assert bench.cell_key(cell) != cell_key
    assert bench.key(cell, "target") != training


# -------------------------------------------------------------------------------------------------------------- cells


def test_cells_without_enough_rows_are_lost_and_the_rest_goes_on(tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(as_row(r, chat=False)) + "\n" for r in RECORDS[:7]))
    bench = bench_of(tmp_path)
    axes = {"set": {"path": "data.split", "values": ["own", "few"]}}
    files = {**bench.config.model_dump(mode="json")["data"]["files"], "few": str(few)}
    study = changed(data__files=files, axes=axes, seeds=[0])
    bench = Bench(check(SweepConfig, study), tmp_path / "work", Rows(tmp_path / "data"))
    ready, lost = bench.prepare(plan_cells(bench.config))
    assert [cell.labels["set"] for cell in ready] == ["own"]
    assert [one.cell.labels["set"] for one in lost] == ["few"]
    assert "few.jsonl has 7 usable rows" in str(lost[0].reason)
    with pytest.raises(DataError, match=r"few.jsonl has 7 usable rows"):
        bench.prepare(plan_cells(bench.config)[1:])


def test_a_study_asks_for_the_attacks_it_names_and_no_other() -> None:
    config = AuditConfig(model="builtin:toy", members="a", nonmembers="b", reference="r", attacks=("loss", "spv"))
    given = {"attacks": ["loss", "spv"]}
    assert asked_by_name(given)
    assert not asked_by_name({**given, FORGIVING: True})
    attacks, not_run = choose_attacks(config, {**given, FORGIVING: True})
    assert set(attacks) == {"loss"}  # no `reference` beside them; spv lacks the base that fills, which is no error
    reasons = [one["reason"] for one in not_run if one["what"] == "spv"]
    assert reasons == ["no base model given (--base or --set spv.filler=NAME)"]
    assert "reference" in choose_attacks(config.model_copy(update={"attacks": ("loss",)}), {})[0]


# --------------------------------------------------------------------------------------------------------------- cost


def test_tokens_of_replies_are_counted_by_themselves(toy: Any) -> None:
    config = AuditConfig(model="m", members="a", nonmembers="b")

    def counted(n_new: int) -> tuple[int, int]:
        dry = Dry("x", toy.chat, toy.context_length)
        attack = make_attack("samia", {"n": 3, "max_new_tokens": n_new})
        assert count([attack], RECORDS[:4], RECORDS[10:], {"target": dry}, config, {}, subject="target") == []
        return dry.tokens, dry.written

    (read, little), (again, much) = counted(5), counted(50)
    assert (little, much) == (4 * 3 * 5, 4 * 3 * 50)
    assert read == again > 0


def test_a_forecast_has_a_rate_of_its_own_for_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[int] = []

    class Model:
        def encode(self, query: Any) -> list[int]:
            return [0] * 10

        def stream(self, encoded: Any) -> Any:
            return iter([])

        def replies(self, queries: Any) -> Any:
            slow.extend(query.reply.max_new_tokens for query in queries)
            return iter([])

    times = iter([0, 1, 10, 11, 13, 20, 28])
    monkeypatch.setattr(cost, "load_model", lambda path, options: (Model(), None))
    monkeypatch.setattr(cost.time, "monotonic", lambda: float(next(times)))
    load = AuditConfig(model="m", members="a", nonmembers="b").load
    assert cost._scoring_rates("m", load, RECORDS[:8], replies=True) == (1.0, 40.0, 8 * cost.TIMED_REPLY / 8)
    assert slow == [cost.TIMED_REPLY] * 8
    times = iter([0, 1, 10, 11, 13])
    assert cost._scoring_rates("m", load, RECORDS[:8], replies=False)[2] == float("inf")

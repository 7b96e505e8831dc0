"""Studies: their rows and their plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from sweep_fakes import RECORDS, STUDY, changed, record

from indelible.checked import check
from indelible.data.formats import read_records
from indelible.data.records import Message, Record
from indelible.errors import ConfigError, DataError
from indelible.sweep.config import Arrange, DataPlan, FilePlan, SweepConfig
from indelible.sweep.data import Rows, arranged, as_row, mixed, parts_of, split_rows
from indelible.sweep.plan import plan_cells
from indelible.sweep.run import read_study

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

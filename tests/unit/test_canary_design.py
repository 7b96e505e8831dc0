"""A design: matched across arms, exact on disk, removable again."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from indelible.canaries.config import DesignConfig
from indelible.canaries.design import Design, build_design
from indelible.canaries.folder import read_design, restore, write_design
from indelible.canaries.formats import TrainingRow
from indelible.canaries.plan import background_of
from indelible.canaries.probes import probes, substitute
from indelible.errors import DataError, UserError
from indelible.runs import RunDir

SMALL = {"rows": 120, "batch_size": 8, "canaries": 8, "dose": 4, "controls": 4, "heldout": 4}


def made(**changes: object) -> tuple[Design, list[TrainingRow]]:
    design, rows, _ = build_design(DesignConfig.model_validate({**SMALL, **changes}))
    return design, rows


def written(tmp_path: Path, **changes: object) -> tuple[Path, Design]:
    config = DesignConfig.model_validate({**SMALL, **changes})
    design, rows, displaced = build_design(config)
    folder = tmp_path / "design"
    facts = {"kind": "canary-design", "config": {"resolved": config.model_dump(mode="json")}}
    write_design(RunDir.open(folder), design, rows, displaced, facts)
    return folder, design


def places(design: Design, canary_id: str) -> list[int]:
    return [i.row for i in design.insertions if i.canary_id == canary_id]


def test_arms_differ_in_nothing_but_the_cue() -> None:
    visible, visible_rows = made(cue="visible")
    redacted, redacted_rows = made(cue="redacted")
    assert visible.insertions == redacted.insertions
    assert [(c.id, c.identity, c.code) for c in visible.canaries] == [
        (c.id, c.identity, c.code) for c in redacted.canaries
    ]
    canary_rows = {i.row for i in visible.insertions}
    for number, (a, b) in enumerate(zip(visible_rows, redacted_rows, strict=True)):
        assert a.answer == b.answer
        assert (a == b) == (number not in canary_rows)
    by_id = {c.id: c for c in visible.canaries}
    for insertion in visible.insertions:
        canary = by_id[insertion.canary_id]
        shown, hidden = (rows[insertion.row].messages[-1].content for rows in (visible_rows, redacted_rows))
        assert visible.codes.written(canary.code) in shown
        assert visible.codes.written(canary.code) not in hidden
        assert visible_rows[insertion.row].answer.endswith(visible.codes.written(canary.code))


def test_doses_are_nested_where_the_reserve_is_one() -> None:
    low, _ = made(dose=2, reserve=8)
    high, _ = made(dose=8, reserve=8)
    for canary in low.of("focal"):
        assert len(places(low, canary.id)) == 2
        assert len(places(high, canary.id)) == 8
        assert set(places(low, canary.id)) < set(places(high, canary.id))


def test_controls_are_never_in_training_and_the_budget_is_fixed() -> None:
    design, rows = made()
    text = json.dumps([[m.content for m in row.messages] + [row.answer] for row in rows])
    assert len(rows) == 120
    assert design.of("control")
    for canary in design.of("control"):
        assert canary.identity.before not in text
        assert design.codes.written(canary.code) not in text


def test_the_clean_file_is_the_same_background() -> None:
    design, rows = made()
    _, clean = made(**{k: v for k, v in background_of(design.config).model_dump().items() if k != "task"})
    canary_rows = {i.row for i in design.insertions}
    assert len(clean) == len(rows)
    assert all(a == b for number, (a, b) in enumerate(zip(rows, clean, strict=True)) if number not in canary_rows)
    assert not any("[redacted]" in row.messages[-1].content for row in clean)


def test_mixed_doses_rotate_over_the_canaries() -> None:
    doses = [[c.dose for c in made(dose=[2, 8], rotation=rotation)[0].of("focal")] for rotation in (0, 1)]
    assert sorted(doses[0]) == [2] * 4 + [8] * 4
    assert all({a, b} == {2, 8} for a, b in zip(*doses, strict=True))
    assert made(dose=[2, 8])[0].population == "mixed doses 2, 8"


def test_auxiliaries_leave_the_focal_canaries_where_they_are() -> None:
    alone, _ = made()
    cohort = {"canaries": 3, "dose": 4, "placement": "late"}
    beside, _ = made(auxiliary=cohort)
    one_shot, _ = made(auxiliary={**cohort, "one_shot": True})
    for canary in alone.of("focal"):
        assert places(alone, canary.id) == places(beside, canary.id) == places(one_shot, canary.id)
    assert len(beside.of("auxiliary")) == 3
    assert len(one_shot.of("auxiliary")) == 12

    def rows_of(design: Design) -> list[int]:
        return sorted(i.row for i in design.insertions if i.canary_id.startswith("auxiliary"))

    assert rows_of(beside) == rows_of(one_shot)
    assert len({c.code for c in one_shot.of("auxiliary")}) == 12


def test_moving_a_cohort_keeps_the_background_where_displaced_rows_are_drawn() -> None:
    cohort = {"canaries": 3, "dose": 4}
    kept = []
    for placement in ("early", "late"):
        design, rows = made(displacement="drawn", auxiliary={**cohort, "placement": placement})
        canary_rows = {i.row for i in design.insertions}
        kept.append([row for number, row in enumerate(rows) if number not in canary_rows])
    assert kept[0] == kept[1]


def test_a_coin_that_falls_moves_nothing() -> None:
    design, rows = made(coins=12)
    coins = design.of("coin")
    inside = [c for c in coins if c.included]
    assert 0 < len(inside) < len(coins)
    assert all(len(places(design, c.id)) == int(bool(c.included)) == c.dose for c in coins)
    _, without = made()
    changed = [n for n, (a, b) in enumerate(zip(rows, without, strict=True)) if a != b]
    assert sorted(changed) == sorted(row for c in inside for row in places(design, c.id))


def test_new_codes_are_nobodys_and_in_no_row() -> None:
    design, rows = made(cue="binary")
    new = [code for codes in design.new_codes.values() for code in codes]
    assert len(set(new)) == len(new) == 4 * 8
    assert not set(new) & {c.code for c in design.canaries}
    text = "\n".join(m.content for row in rows for m in row.messages) + "\n".join(row.answer for row in rows)
    for code in new:
        assert code not in text
        assert design.codes.written(code) not in text
        assert design.cue("binary").encode(code) not in text


def test_probes_show_what_they_say() -> None:
    design, _ = made(cue="binary")
    by_id = {c.id: c for c in design.canaries}
    found = {(p.canary_id, p.probe, p.repeat): p for p in probes(design)}
    focal = design.of("focal")
    assert {p.probe for p in found.values() if p.canary_id.startswith("control")} == {"redacted"}
    for at, canary in enumerate(focal):
        other = focal[(at + 1) % len(focal)]
        own, hidden, swapped = (found[canary.id, name, 0] for name in ("as-trained", "redacted", "substituted"))
        assert design.cue("binary").encode(canary.code) in own.messages[-1].content
        assert "[redacted]" in hidden.messages[-1].content
        assert hidden.supplied is None
        assert design.cue("binary").encode(other.code) in swapped.messages[-1].content
        assert (swapped.assigned, swapped.supplied) == (canary.code, other.code)
        assert own.messages == design.row_of(by_id[canary.id]).messages
        for repeat in range(4):
            unseen, plain = found[canary.id, "unseen", repeat], found[canary.id, "plain", repeat]
            assert unseen.supplied == plain.supplied == design.new_codes[canary.id][repeat]
            assert design.codes.written(plain.supplied) in plain.messages[-1].content


def test_a_substitute_has_the_same_prefix() -> None:
    design, _ = made(code="AAA-XXXX-XXXX", canaries=16, dose=1)
    focal = design.of("focal")
    for canary in focal:
        other = substitute(design, canary, focal)
        assert other is not None
        assert other.id != canary.id
        assert design.codes.prefix(other.code) == design.codes.prefix(canary.code)


def test_a_design_reads_back_as_it_was_written(tmp_path: Path) -> None:
    folder, design = written(tmp_path, cue="chained-fruit", coins=4, dose=[2, 4])
    assert read_design(folder) == design
    ledger = pd.read_parquet(folder / "insertions.parquet")
    assert len(ledger) == len(design.insertions)
    lines = (folder / "train.jsonl").read_text().splitlines()
    by_id = {c.id: c for c in design.canaries}
    for row in ledger.itertuples():
        turns = json.loads(lines[row.row])["messages"]
        assert turns[-1]["content"].endswith(design.codes.written(by_id[row.canary_id].code))
        assert turns[0] == {"role": "system", "content": design.system}


def test_a_changed_design_is_refused(tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    with (folder / "train.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(DataError, match="was changed after it was written"):
        read_design(folder)


def test_another_run_is_no_design(tmp_path: Path) -> None:
    RunDir.open(tmp_path / "run").finish({"kind": "audit"})
    with pytest.raises(UserError, match="expected a design"):
        read_design(tmp_path / "run")


USER_ROWS = [
    {
        "prompt": f"Where is parcel {i}?\u2028 It is   late.",
        "response": f"Parcel {i} left the depot. \u00e9",
        "extra": i,
    }
    for i in range(60)
]


@pytest.mark.parametrize("displacement", ["in-place", "drawn"])
def test_a_users_file_comes_back_byte_for_byte(tmp_path: Path, displacement: str) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(USER_ROWS)))
    task = {"name": "file", "path": str(own)}
    folder, design = written(tmp_path, task=task, rows=48, canaries=4, dose=3, heldout=4, displacement=displacement)
    lines = (folder / "train.jsonl").read_bytes().decode().removesuffix("\n").split("\n")
    originals = own.read_bytes().decode().split("\n")
    canary_rows = {i.row for i in design.insertions}
    assert all((line in originals) == (number not in canary_rows) for number, line in enumerate(lines))
    some = json.loads(lines[min(canary_rows)])
    assert set(some) == {"prompt", "response", "extra"}
    assert restore(folder, tmp_path / "restored.jsonl") == 12
    restored = (tmp_path / "restored.jsonl").read_bytes().decode().removesuffix("\n").split("\n")
    empty = background_of(design.config)
    _, clean, _ = build_design(empty)
    assert restored == [row.raw for row in clean]
    with pytest.raises(UserError, match="exists"):
        restore(folder, tmp_path / "restored.jsonl")


def test_our_own_rows_come_back_too(tmp_path: Path) -> None:
    folder, design = written(tmp_path)
    restore(folder, tmp_path / "restored.jsonl")
    clean_folder, _ = written(tmp_path / "clean", **background_of(design.config).model_dump())
    assert (tmp_path / "restored.jsonl").read_bytes() == (clean_folder / "train.jsonl").read_bytes()


@pytest.mark.parametrize("format_", ["instruction", "llama-factory", "axolotl"])
def test_other_formats_hold_the_same_rows(tmp_path: Path, format_: str) -> None:
    import yaml

    from indelible.data.formats import read_records

    folder, design = written(tmp_path, format=format_)
    plain, _ = written(tmp_path / "plain")
    ours, theirs = (read_records(path / "train.jsonl").records for path in (plain, folder))
    assert [(r.messages, r.target) for r in ours] == [(r.messages, r.target) for r in theirs]
    if format_ == "llama-factory":
        info = json.loads((folder / "dataset_info.json").read_text())["indelible_canaries"]
        assert info["file_name"] == "train.jsonl"
        assert yaml.safe_load((folder / "llamafactory.yaml").read_text())["disable_shuffling"] is True
    if format_ == "axolotl":
        settings = yaml.safe_load((folder / "axolotl.yaml").read_text())
        assert settings["shuffle_merged_datasets"] is False
        assert settings["datasets"][0]["path"] == "train.jsonl"
    assert read_design(folder).config.format == format_
    assert design.n_rows == len(ours)

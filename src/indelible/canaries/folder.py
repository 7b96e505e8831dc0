"""A design on disk: the training file, the ledger of what was inserted where, the probes; and the way back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from indelible.canaries.base import Canary, Identity, Row
from indelible.canaries.codes import code_format
from indelible.canaries.config import SCREEN_PROBES, DesignConfig
from indelible.canaries.design import Design
from indelible.canaries.formats import TRAIN_FILE, TrainingRow, row_object, write_training_file
from indelible.canaries.insertion import Insertion, remove
from indelible.canaries.probes import Probe, probes
from indelible.canaries.screen_store import (
    pictures_of,
    read_screen,
    read_stored,
    stored_canary,
    stored_probe,
    stored_row,
    write_pictures,
)
from indelible.data.pictures import pixels
from indelible.data.records import Message
from indelible.data.row_images import IMAGES
from indelible.data.synthetic import write_jsonl
from indelible.environment import package_version
from indelible.errors import DataError, UserError
from indelible.models.builtin import file_sha256
from indelible.runs import RunDir, read_manifest, verify, write_bytes

KIND = "canary-design"
CANARIES = "canaries.json"
INSERTIONS = "insertions.parquet"
DISPLACED = "displaced.jsonl"
HELDOUT = "heldout.jsonl"
PROBES = "probes.jsonl"


def write_design(
    run: RunDir,
    design: Design,
    rows: Sequence[TrainingRow],
    displaced: Mapping[str, Row],
    facts: Mapping[str, Any],
    *,
    pictures: Path | None = None,
) -> None:
    """Write a design's folder; `facts` go into its manifest beside what the design says of itself. `pictures`: a folder
    that keeps those of several designs once."""
    import pandas as pd

    config = design.config
    write_training_file(run.path, rows, config.format, user_columns=config.task.columns)
    run.write_json(
        CANARIES,
        {
            "canaries": [stored_canary(c) for c in design.canaries],
            "new_codes": {name: list(codes) for name, codes in design.new_codes.items()},
        },
    )
    by_id = {c.id: c for c in design.canaries}
    ledger = pd.DataFrame([asdict(i) for i in design.insertions], columns=[f.name for f in fields(Insertion)])
    for name, value in (("role", "role"), ("arm", "cue"), ("dose", "dose")):
        ledger[name] = [getattr(by_id[i.canary_id], value) for i in design.insertions]
    run.write_parquet(INSERTIONS, ledger)
    asked = _asked(design)
    named = pictures_of([*rows, *displaced.values(), *design.heldout], design.canaries, asked)
    write_pictures(run.path, named, pictures)
    write_jsonl(run.path / DISPLACED, [stored_row(row) for row in displaced.values()])
    write_jsonl(run.path / HELDOUT, [stored_row(row) for row in design.heldout])
    write_jsonl(run.path / PROBES, [stored_probe(p) for p in asked])
    run.finish(
        {
            **facts,
            "design": design_facts(design) | {"sha256": file_sha256(run.path / TRAIN_FILE)},
            "system": design.system,
            "max_new_tokens": design.max_new_tokens,
            "n_rows": design.n_rows,
            "n_steps": design.n_steps,
            "checkpoints": list(design.checkpoints),
            **({"drawn_with": _drawn_with()} if design.on_screens else {}),
        }
    )


def design_facts(design: Design) -> dict[str, Any]:
    """What a report says of a design."""
    config = design.config
    roles: dict[str, int] = {}
    for canary in design.canaries:
        roles[canary.role] = roles.get(canary.role, 0) + 1
    return {
        "task": config.task.name,
        "rows": design.n_rows,
        "copies": config.copies,
        "order": config.order,
        "batch_size": config.batch_size,
        "n_steps": design.n_steps,
        "code": {"name": design.codes.name, "entropy_bits": round(design.codes.entropy_bits, 2)},
        "system": design.system,
        "cue": config.cue,
        "dose": list(config.dose),
        "placement": sorted({c.placement for c in design.of("focal")}),
        "population": design.population,
        "canaries": roles,
        "canary_rows": len(design.insertions),
        "displacement": config.displacement,
        "checkpoints": list(design.checkpoints),
        "seed": config.seed,
        **({"rows_left_out": dict(design.left_out)} if design.left_out else {}),
    }


def read_design(path: Path | str, *, drawn: bool = True) -> Design:
    """Read a design's folder back.

    Args:
        drawn: draw the pictures of its probes and compare them with those that were written.

    Raises:
        UserError: no design there, or a file of it was changed after it was written, or its probes' pictures are drawn
        otherwise here.
    """
    import pandas as pd

    path = Path(path)
    manifest = read_manifest(path)
    if manifest.get("kind") != KIND:
        raise UserError(
            f"{path} holds a run of kind {manifest.get('kind')}, expected a design: give --design its folder"
        )
    changed = [line for line in verify(path) if not line.startswith("not in the manifest")]
    if changed:
        raise DataError(f"design {path} was changed after it was written ({'; '.join(changed)}): write it anew")
    config = DesignConfig.model_validate(manifest["config"]["resolved"])
    stored = json.loads((path / CANARIES).read_text(encoding="utf-8"))
    ledger = pd.read_parquet(path / INSERTIONS)
    design = Design(
        config=config,
        codes=code_format(config.code, config.prefixes),
        system=manifest["system"],
        max_new_tokens=manifest["max_new_tokens"],
        canaries=tuple(_canary(c, path) for c in stored["canaries"]),
        insertions=tuple(_insertion(row) for row in ledger.to_dict("records")),
        new_codes={name: tuple(codes) for name, codes in stored["new_codes"].items()},
        heldout=tuple(_row(r, path) for r in read_lines(path / HELDOUT)),
        n_rows=manifest["n_rows"],
        n_steps=manifest["n_steps"],
        checkpoints=tuple(manifest["checkpoints"]),
        left_out=manifest["design"].get("rows_left_out", {}),
    )
    if drawn and design.on_screens:
        _check_drawn(path, design, manifest)
    return design


def _asked(design: Design) -> list[Probe]:
    """The probes that a folder holds; on screens without those of new codes, which are many pictures."""
    return probes(design, SCREEN_PROBES[:5] if design.on_screens else None)


def _check_drawn(path: Path, design: Design, manifest: Mapping[str, Any]) -> None:
    """The pictures of the probes, drawn anew, are those that were checked and trained on, pixel for pixel. (Their bytes
    may differ with the compression library.)"""
    stored = {(p["canary_id"], p["probe"], p["repeat"]): p[IMAGES] for p in read_lines(path / PROBES)}
    for probe in _asked(design):
        names = stored.get((probe.canary_id, probe.probe, probe.repeat), ())
        drawn = [image.sha256 for image in probe.images]
        if drawn != names and [pixels(i) for i in probe.images] != [pixels(read_stored(path, n)) for n in names]:
            raise DataError(
                f"design {path}: the picture of {probe.canary_id} for the probe '{probe.probe}' is drawn otherwise "
                f"here ({_drawn_with()}) than where the design was written ({manifest['drawn_with']}), and the model "
                "would be asked about another one than it was trained on: use those versions, or write the design anew"
            )


def _drawn_with() -> str:
    """What decides the pixels of a text that is drawn."""
    from PIL import __version__, features

    return f"indelible {package_version()}, Pillow {__version__}, FreeType {features.version('freetype2')}"


def restore(path: Path | str, out: Path) -> int:
    """Write the training file as it would be without canaries; how many rows were taken out.

    The displaced rows return to where they stood. With `displacement: in-place` every other line is untouched. Pictures
    stay in the design's folder: rows of a file elsewhere name them from there.

    Raises:
        UserError: `out` exists, or the design was changed.
    """
    path = Path(path)
    design = read_design(path, drawn=False)
    if out.exists():
        raise UserError(f"{out} exists: give --out a new file")
    lines = (path / TRAIN_FILE).read_bytes().decode().removesuffix("\n").split("\n")
    displaced = {row.id: row for row in (_row(r, path) for r in read_lines(path / DISPLACED))}
    at = {i.row: i.canary_id for i in design.insertions}
    sequence = [
        at[number] if number in at else Row(id=f"line {number}", messages=(), answer="", raw=line)
        for number, line in enumerate(lines)
    ]
    restored = remove(
        sequence,
        design.insertions,
        displaced,
        displacement=design.config.displacement,
        seed=design.config.seed,
    )
    made = []
    for row in restored:
        if row.raw is not None:
            made.append(_from_elsewhere(row.raw, path, out) if design.on_screens else row.raw)
            continue
        whole = TrainingRow(design.turns(row.messages), row.answer, images=row.images)
        line = json.dumps(row_object(whole, design.config.format), ensure_ascii=False)
        made.append(_from_elsewhere(line, path, out) if design.on_screens else line)
    write_bytes(out, "".join(line + "\n" for line in made).encode())
    return len(design.insertions)


def _from_elsewhere(line: str, folder: Path, out: Path) -> str:
    """A line with the paths of its pictures as they are from the folder of `out`."""
    if out.resolve().parent == folder.resolve():
        return line
    row = json.loads(line)
    row[IMAGES] = [
        Path(os.path.relpath((folder / name).resolve(), out.resolve().parent)).as_posix() for name in row[IMAGES]
    ]
    return json.dumps(row, ensure_ascii=False)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A JSONL file of ours."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _insertion(row: Mapping[Any, Any]) -> Insertion:
    return Insertion(
        int(row["row"]), int(row["update"]), str(row["canary_id"]), int(row["appearance"]), str(row["displaced"])
    )


def _messages(turns: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    return tuple(Message(turn["role"], turn["content"], bool(turn.get("scored"))) for turn in turns)


def _row(stored: Mapping[str, Any], folder: Path) -> Row:
    images = tuple(read_stored(folder, name) for name in stored.get("images", ()))
    return Row(stored["id"], _messages(stored["messages"]), stored["answer"], stored["expected"], stored["raw"], images)


def _canary(stored: Mapping[str, Any], folder: Path) -> Canary:
    identity = dict(stored["identity"])
    if "screen" in identity:
        identity["screen"] = read_screen(folder, identity["screen"])
    return Canary(
        **{key: value for key, value in stored.items() if key != "identity"},
        identity=Identity(**{**identity, "messages": _messages(identity["messages"])}),
    )

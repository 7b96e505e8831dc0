"""The pre-flight: a code that would not be trained on stops everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indelible.canaries.config import DesignConfig
from indelible.canaries.design import Design, build_design
from indelible.canaries.formats import TrainingRow
from indelible.canaries.preflight import load_chat, survival, survival_of_labels
from indelible.data.records import Query
from indelible.errors import DataError


@pytest.fixture(scope="module")
def chat() -> Any:
    return load_chat("builtin:toy", template=None, trust_remote_code=False, chat_data=True)[0]


@pytest.fixture(scope="module")
def design_and_rows() -> tuple[Design, list[TrainingRow]]:
    config = {"rows": 40, "batch_size": 8, "canaries": 4, "dose": 2, "controls": 0, "heldout": 0}
    design, rows, _ = build_design(DesignConfig.model_validate(config))
    return design, rows


def labelled(chat: Any, rows: list[TrainingRow]) -> list[dict[str, list[int]]]:
    out = []
    for row in rows:
        encoded = chat.encode(Query(row.messages, row.answer))
        labels = [int(t) if scored else -100 for t, scored in zip(encoded.input_ids, encoded.is_target, strict=True)]
        out.append({"input_ids": encoded.input_ids.tolist(), "labels": labels})
    return out


def dump(path: Path, rows: list[dict[str, list[int]]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_all_codes_survive(chat: Any, design_and_rows: tuple[Design, list[TrainingRow]]) -> None:
    design, _ = design_and_rows
    facts = survival(design, chat, max_tokens=4096)
    assert facts["canaries"] == facts["tokenised"] == facts["untruncated"] == facts["supervised"] == 4
    assert facts["rows_inserted"] == 8
    longest = max(len(chat.encode(Query(design.row_of(c).messages, design.row_of(c).answer))) for c in design.canaries)
    assert facts["longest_row_tokens"] == longest


def test_truncation_is_refused(chat: Any, design_and_rows: tuple[Design, list[TrainingRow]]) -> None:
    design, _ = design_and_rows
    longest = survival(design, chat, max_tokens=4096)["longest_row_tokens"]
    with pytest.raises(DataError, match=rf"lie within {longest - 1} tokens \(the longest row has {longest}\)"):
        survival(design, chat, max_tokens=longest - 1)


def test_a_trainers_labels_are_checked(
    chat: Any, design_and_rows: tuple[Design, list[TrainingRow]], tmp_path: Path
) -> None:
    design, rows = design_and_rows
    good = labelled(chat, rows)
    assert survival_of_labels(design, chat, dump(tmp_path / "good.jsonl", good))["supervised"] == 8
    first = design.insertions[0].row
    masked = [dict(row) for row in good]
    masked[first] = {**masked[first], "labels": [-100] * len(masked[first]["labels"])}
    with pytest.raises(DataError, match="1 of 8 canary rows have no loss on their code"):
        survival_of_labels(design, chat, dump(tmp_path / "masked.jsonl", masked))
    shuffled = good[::-1]
    with pytest.raises(DataError, match="its input is not that of"):
        survival_of_labels(design, chat, dump(tmp_path / "shuffled.jsonl", shuffled))
    with pytest.raises(DataError, match="cannot be read"):
        survival_of_labels(design, chat, tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="has 39 rows, the design 40"):
        survival_of_labels(design, chat, dump(tmp_path / "short.jsonl", good[:-1]))


def test_a_tokenizer_that_loses_the_code_is_refused(
    chat: Any, design_and_rows: tuple[Design, list[TrainingRow]]
) -> None:
    from dataclasses import replace

    class Lossy:
        """A tokenizer whose text has no digits any more."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self._inner(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def decode(self, ids: Any) -> str:
            return "".join("?" if c.isdigit() else c for c in self._inner.decode(ids))

    design, _ = design_and_rows
    with pytest.raises(DataError, match="0 keep their code through tokenisation"):
        survival(design, replace(chat, tokenizer=Lossy(chat.tokenizer)), max_tokens=4096)

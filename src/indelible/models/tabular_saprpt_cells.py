"""What ConTextTab takes of a table: numbers, dates, texts and column names, frozen on the training context.

A row becomes one vector, so that it can travel as any model's rows do. Each column gives CELL numbers: the value
standardised (ABSENT where the column holds no numbers), year, month, day and weekday (0 where there is none), the
vector of the value's text, the vector of the column's name. The vector of the target's name comes last. Column names
thus travel with every row: they cost memory, and keep a question complete in itself.

Standardisation follows the published estimator, fitted once: missing numbers take the context's mean, numbers are kept
within its 0.5th and 99.5th percentile, mean and standard deviation are taken after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from indelible.data.tables import Table

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors (n, TEXT)."""

TEXT = 384
DATE = slice(1, 5)
VALUE_TEXT = slice(5, 5 + TEXT)
NAME_TEXT = slice(5 + TEXT, 5 + 2 * TEXT)
CELL = 5 + 2 * TEXT
ABSENT, ASKED = -100.0, -100.0
"""What the network takes for no number, and for a target that is asked for."""
PERCENTILES = (0.5, 99.5)
MAX_COLUMNS = 499
FIRST_YEAR, LAST_YEAR = 2000, 2050


@dataclass(frozen=True)
class Scale:
    """How a column of numbers is standardised."""

    filling: float
    low: float
    high: float
    mean: float
    std: float

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        filled = np.where(np.isfinite(values), values, self.filling)
        return (filled.clip(self.low, self.high) - self.mean) / self.std


@dataclass(frozen=True)
class CellEncoding:
    """Rows as vectors of cells. A `RowEncoding`.

    Attributes:
        names: of every number of a row.
        columns: names and kinds of the features.
        scales: of the columns of numbers, by name.
        headings: (columns + 1, TEXT) vectors of the columns' names, the target's last.
        context: (C, F') the rows that it is frozen on, from which cells are redrawn.
    """

    names: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    scales: dict[str, Scale]
    headings: NDArray[np.float32]
    embed: Embed
    context: NDArray[np.float32]

    def encode(self, features: pd.DataFrame) -> NDArray[np.float32]:
        """(n, F') of n rows."""
        cells = np.zeros((len(features), len(self.columns), CELL), np.float32)
        for j, (name, kind) in enumerate(self.columns):
            values = features[name]
            cells[:, j, 0] = ABSENT
            if kind == "number":
                cells[:, j, 0] = self.scales[name](values.to_numpy(np.float64))
            elif kind == "date":
                cells[:, j, DATE] = _calendar(values.to_numpy(np.float64))
            else:
                cells[:, j, VALUE_TEXT] = self.embed(["nan" if v is None or v != v else str(v) for v in values])
            cells[:, j, NAME_TEXT] = self.headings[j]
        target = np.broadcast_to(self.headings[-1], (len(features), TEXT))
        return np.concatenate([cells.reshape(len(features), -1), target], axis=1, dtype=np.float32)

    def placeholder(self) -> NDArray[np.float32]:
        """(F',) the mean of every number, the context's most frequent date or text of every other column."""
        row: NDArray[np.float32] = self.context[0].copy()
        for j, (_, kind) in enumerate(self.columns):
            cell, of = slice(j * CELL, (j + 1) * CELL), self.context[:, j * CELL : (j + 1) * CELL]
            if kind == "number":
                row[j * CELL] = 0.0
            else:
                values, counts = np.unique(of, axis=0, return_counts=True)
                row[cell] = values[counts.argmax()]
        return row

    def noised(self, rows: NDArray[Any], rng: np.random.Generator, scale: float) -> NDArray[Any]:
        """Numbers moved by `scale` standard deviations of a normal; other cells, with probability `scale`, those of a
        random context row."""
        out = np.array(rows, dtype=np.float32)
        for j, (_, kind) in enumerate(self.columns):
            if kind == "number":
                out[:, j * CELL] += scale * rng.standard_normal(len(out)).astype(np.float32)
            else:
                redrawn = rng.random(len(out)) < scale
                drawn = rng.integers(len(self.context), size=len(out))
                cell = slice(j * CELL, (j + 1) * CELL)
                out[redrawn, cell] = self.context[drawn[redrawn], cell]
        return out


def fit_cells(table: Table, context_rows: NDArray[np.int64], embed: Embed) -> CellEncoding:
    """The encoding of a table, frozen on these rows.

    Raises:
        DataError: more columns than the network takes.
    """
    if len(table.columns) > MAX_COLUMNS:
        raise DataError(f"{table.name} has {len(table.columns)} features; sap-rpt takes {MAX_COLUMNS}: drop columns")
    context = table.features.iloc[context_rows]
    columns = tuple((column.name, column.kind) for column in table.columns)
    scales = {name: fit_scale(context[name].to_numpy(np.float64)) for name, kind in columns if kind == "number"}
    parts = ("number", "year", "month", "day", "weekday")
    texts = [f"text {i}" for i in range(TEXT)] + [f"heading {i}" for i in range(TEXT)]
    names = [f"{name}: {part}" for name, _ in columns for part in (*parts, *texts)]
    names += [f"{table.target_name}: heading {i}" for i in range(TEXT)]
    headings = embed([name for name, _ in columns] + [table.target_name])
    bare = CellEncoding(tuple(names), columns, scales, headings, embed, np.zeros((0, len(names)), np.float32))
    return CellEncoding(bare.names, columns, scales, headings, embed, bare.encode(context))


def fit_scale(values: NDArray[np.float64]) -> Scale:
    """Standardisation of one column of numbers by its context values; see the module."""
    finite = values[np.isfinite(values)]
    filling = float(finite.mean()) if len(finite) else 0.0
    filled = np.where(np.isfinite(values), values, filling)
    low, high = (float(v) for v in np.percentile(filled, PERCENTILES))
    kept = filled.clip(low, high)
    std = float(kept.std())
    return Scale(filling, low, high, float(kept.mean()), std if std > 0 else 1.0)


def network_input(context_x: Tensor, context_y: Tensor, query_x: Tensor) -> dict[str, Tensor]:
    """One question, (C, F'), (C,) and (Q, F'), as the dictionary that the network takes; the target is the last
    column."""
    x = torch.cat([context_x, query_x])
    cells = x[:, :-TEXT].unflatten(-1, (-1, CELL))  # (T, columns, CELL)
    padded = torch.nn.functional.pad(cells, (0, 0, 0, 1))  # the target's column
    numbers = torch.cat([cells[:, :, 0], torch.full_like(x[:, :1], ABSENT)], dim=1)
    asked = torch.full((len(query_x),), ASKED, device=x.device)
    return {
        "column_embeddings": torch.cat([cells[0, :, NAME_TEXT], x[:1, -TEXT:]]),
        "text_embeddings": padded[:, :, VALUE_TEXT].clone(),  # the network writes into it
        "date_year_month_day_weekday": padded[:, :, DATE].long(),
        "number_normalized": numbers,
        "target": torch.cat([context_y.to(asked.dtype), asked]),
        "target_delta": torch.zeros(len(x), device=x.device),
    }


def _calendar(days: NDArray[np.float64]) -> NDArray[np.float32]:
    """Year since 2000, month, day and weekday of days since 1970, each counted from 1; 0 where there is no date."""
    import pandas as pd

    out = np.zeros((len(days), 4), np.float32)
    given = np.isfinite(days)
    dates = pd.DatetimeIndex((np.floor(days[given]) * 86400e9).astype("datetime64[ns]"))
    year = np.clip(dates.year, FIRST_YEAR, LAST_YEAR) - FIRST_YEAR + 1
    out[given] = np.stack([year, dates.month, dates.day, dates.day_of_week + 1], axis=1)
    return out


def embed_texts(texts: Sequence[str]) -> NDArray[np.float32]:
    """Texts as the network was trained to see them: the mean of all-MiniLM-L6-v2's token vectors, not normalised,
    rounded to half precision.

    Raises:
        MissingExtra: the package that carries the embedder is not installed.
    """
    known = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    tokenizer, network = _embedder()
    vectors = []
    with torch.no_grad():
        for i in range(0, len(known), 512):
            batch = tokenizer(
                list(known)[i : i + 512], padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            states = network(**batch).last_hidden_state  # (n, L, TEXT)
            mask = batch["attention_mask"][..., None].to(states.dtype)
            vectors.append((states * mask).sum(1) / mask.sum(1))
    table = torch.cat(vectors).half().float().numpy()
    return np.asarray(table[[known[text] for text in texts]], dtype=np.float32)


@cache
def _embedder() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    from indelible.models.builtin import embedder_folder

    folder = embedder_folder()
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

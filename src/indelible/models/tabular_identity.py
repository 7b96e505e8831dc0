"""The guard against preprocessing that erases who is asked about.

Under a context whose rows are all alike, whatever is fitted on that context (a standardisation, the choice of columns
that vary) takes the query's identity away: every row gets one answer, and an audit of nothing comes out as "not
detected". Two checks: that the numbers of different records differ where they enter the module, and that answers do
where they leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from indelible.errors import ModelError
from indelible.models.tabular import TabularQueries

if TYPE_CHECKING:
    from indelible.models.tabular import TabularModel

SAME = 1e-7
"""Log-probabilities that differ by less, in nats, are one answer."""


def check_identity(queries: TabularQueries, rows: Sequence[Sequence[object]] | None = None) -> None:
    """The guard against preprocessing that erases who is asked about.

    Args:
        rows: (B, Q) of which record each query is; without it every query is another record.

    Raises:
        ModelError: two queries of different records reach the module as equal features: nothing that comes out could
            tell them apart.
    """
    flat = queries.query_x.detach().reshape(-1, queries.query_x.shape[-1]).cpu().numpy() + np.float32(0)  # -0 is 0
    owners: Sequence[object] = range(len(flat)) if rows is None else [row for of in rows for row in of]
    if len(owners) != len(flat):
        raise ModelError(f"identity check: {len(owners)} record names for {len(flat)} queries")
    seen: dict[bytes, object] = {}
    for owner, values in zip(owners, flat, strict=True):
        first = seen.setdefault(values.tobytes(), owner)
        if first != owner:
            raise ModelError(
                f"queries {first} and {owner} reach the model as equal features: their identity is erased; freeze the "
                "encoding on the training context, and remove rows that are duplicates"
            )


def prove_identity(model: TabularModel, rows: NDArray[np.float32]) -> None:
    """Prove, on a few rows, that a context of copies of the query does not erase the query.

    Args:
        rows: (n, F) different rows, as the model's own encoding made them: not every vector is one.

    Raises:
        ModelError: different rows get equal answers, as where a network standardises by its context.
    """
    asked = torch.from_numpy(np.array(rows, np.float32))[:, None]  # (n, 1, F)
    n = len(asked)
    answers = model.logprobs(TabularQueries(asked.expand(n, 2, -1), torch.tensor([0, 1]).expand(n, 2), asked, 2))[:, 0]
    if bool((answers - answers[:1]).abs().max() < SAME):
        raise ModelError(
            f"{model.name}: under a context of copies every query gets the same answer; it cannot be probed"
        )

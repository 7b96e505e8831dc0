"""The reference pool: demonstrations by semantic similarity, and constant prefixes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indelible.data.records import Context, Message, Record, Role
from indelible.errors import ModelError

DEFAULT_EMBEDDER = "builtin:all-minilm-l6-v2"


def demonstration(record: Record, *, strip: bool = False) -> Context:
    """A pool record as a demonstration: its turns, nothing scored, its system turn left out."""
    turns = tuple(Message(m.role, m.content) for m in record.messages if m.role != "system")
    role: Role = "text" if all(m.role == "text" for m in record.messages) else "assistant"
    target = record.target.strip() if strip else record.target
    return (*turns, Message(role, target + "\n\n" if role == "text" else target))


def embed(texts: Sequence[str], embedder: str = DEFAULT_EMBEDDER) -> NDArray[np.float32]:
    """Unit sentence embeddings, (n, D).

    Args:
        embedder: `builtin:all-minilm-l6-v2`, or a sentence-transformers folder or hub name.

    Raises:
        ModelError: the embedder cannot be loaded.
    """
    model = _load(embedder)
    out: NDArray[np.float32] = model.encode(
        list(texts), batch_size=64, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
    )
    return out


@lru_cache(maxsize=2)
def _load(embedder: str) -> Any:
    from sentence_transformers import SentenceTransformer

    from indelible.models.builtin import embedder_folder

    place = str(embedder_folder()) if embedder == DEFAULT_EMBEDDER else embedder
    try:
        return SentenceTransformer(place, device="cpu")
    except (OSError, ValueError) as error:
        raise ModelError(f"sentence embedder {embedder} cannot be loaded") from error


def nearest(
    queries: NDArray[np.float32], pool: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
) -> list[list[int]]:
    """The k pool rows of highest cosine similarity for each query, best first; exact search.

    Args:
        queries: (n, D) unit vectors. pool: (m, D) unit vectors.
        allowed: (n, m), false where a pool row is no probe of a query (its own duplicate).
    """
    similarity = np.where(allowed, queries @ pool.T, -np.inf)  # (n, m)
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    return [[int(j) for j in row if np.isfinite(similarity[i, j])] for i, row in enumerate(order)]


def constant_prefix(pool: Sequence[Record], shots: int, seed: int) -> Context:
    """`shots` demonstrations from the pool, the same for a whole run: drawn once, seeded, whatever the pool's order."""
    ordered = sorted(pool, key=lambda r: r.id)
    chosen = random.Random(f"{seed}:prefix").sample(ordered, min(shots, len(ordered)))
    return tuple(turn for record in chosen for turn in demonstration(record))

"""Questions that ask for text: each distinct one once, cached, shared among processes like the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from indelible import distributed
from indelible.data.records import Query
from indelible.errors import ModelError, Unscorable
from indelible.models.base import LanguageModel
from indelible.progress import Progress
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import Answers, Counts

AT_ONCE = 64
"""Replies between two writes to the cache: an interruption loses no more."""


def remembered(
    model: LanguageModel, queries: Sequence[Query], cache: AnswerCache | None
) -> Iterator[tuple[int, str | Unscorable]]:
    """What `model.replies` gives, for one process: those at hand first, new ones kept, also of an interrupted run."""
    at_hand = cache.read_texts(model.fingerprint, queries) if cache is not None else {}
    yield from ((i, at_hand[query]) for i, query in enumerate(queries) if query in at_hand)
    left = [i for i, query in enumerate(queries) if query not in at_hand]
    new: list[tuple[Query, str]] = []

    def keep() -> None:
        if cache is not None and new:
            cache.write_texts(model.fingerprint, new)
        new.clear()

    try:
        for k, text in model.replies([queries[i] for i in left]) if left else ():
            if not isinstance(text, Unscorable):
                new.append((queries[left[k]], text))
            if len(new) >= AT_ONCE:
                keep()
            yield left[k], text
    finally:
        keep()


def reply(
    model: LanguageModel, queries: Iterable[Query], *, cache: AnswerCache | None = None, stage: str = "replies"
) -> tuple[Answers, Counts]:
    """Ask a model for texts.

    Args:
        queries: each with a `reply`; in any order, with repetitions.
        cache: as in `engine.answer`.

    Returns:
        the answers' `texts`, and what they cost, in all processes the same. A question whose prompt and longest reply
        do not fit the context, or with nothing before the reply, is failed with that reason.
    """
    asked = list(queries)
    unique = list(dict.fromkeys(asked))
    cache = cache if distributed.is_main() else None
    texts: dict[Query, str] = distributed.from_main(
        lambda: cache.read_texts(model.fingerprint, unique) if cache is not None else {}
    )
    counts = Counts(len(asked), len(unique), len(texts))
    failed: dict[Query, str] = {}
    todo: list[Query] = []
    for query in unique:
        if query in texts:
            continue
        n_new, begun = (query.reply.max_new_tokens, query.reply.begun) if query.reply else (0, "")
        try:
            n_prompt = model.prompt_length(query)
        except ModelError as error:
            if not begun:
                raise
            failed[query] = str(error)  # this format begins no reply: a matter of such questions alone
            continue
        if n_prompt + n_new > model.context_length:
            failed[query] = f"longer than the context ({n_prompt} + {n_new} > {model.context_length} tokens)"
        elif n_prompt == 0:
            failed[query] = "nothing before the reply"
        else:
            todo.append(query)
            counts.tokens_asked += n_prompt + n_new
    counts.failed = len(failed)
    counts.tokens_computed = counts.tokens_asked
    with Progress(stage, total=len(todo), unit="replies") as progress:
        n, mine = distributed.n_processes(), distributed.process_index()
        for start in range(0, len(todo), AT_ONCE * n):
            part = todo[start : start + AT_ONCE * n]
            own = part[mine::n]
            made: list[tuple[Query, str | Unscorable]] = []
            broken: BaseException | None = None
            try:
                made.extend((own[i], text) for i, text in model.replies(own))
            except BaseException as caught:  # noqa: BLE001 - raised below, once what was made is safe
                broken = caught
            with distributed.undisturbed():
                parts, broken = distributed.meet(made, broken)
                for rows in filter(None, parts):
                    failed.update((query, str(text)) for query, text in rows if isinstance(text, Unscorable))
                    new = [(query, text) for query, text in rows if not isinstance(text, Unscorable)]
                    texts.update(new)
                    if cache is not None and new:
                        cache.write_texts(model.fingerprint, new)
            if broken is not None:
                raise broken
            progress.advance(len(part))
    counts.failed = len(failed)
    return Answers({}, failed, texts=texts), counts

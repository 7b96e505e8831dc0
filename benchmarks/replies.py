"""Replies that begin alike: with what they share computed once, without, and by one plain `generate` a reply.

    python benchmarks/replies.py --data train.jsonl [--model M] [--records 3] [--spans 20] [--tokens 8]

The work is that of an attack that refills an answer span by span: every reply goes on from a longer beginning of the
same answer. The ways take turns over the same questions. The last line is JSON: `shared`, `unshared` and `plain`,
seconds (the median of `--repeat` turns); `equal`, the share of replies that all three ways give alike to the letter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import torch

from indelible.data.formats import read_records
from indelible.data.records import Query, Record, Reply
from indelible.models import generation
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model


def questions(record: Record, n_spans: int, n_tokens: int) -> list[Query]:
    """The record's answer, begun at `n_spans` places that are evenly spread over its words."""
    words = record.target.split(" ")
    cuts = sorted({len(words) * i // n_spans for i in range(n_spans)})
    begun = [" ".join(words[:cut]) + (" " if cut else "") for cut in cuts]
    return [Query(record.messages, record.target[len(b) :], reply=Reply(n_tokens, begun=b)) for b in begun]


def ours(model: CausalModel, asked: list[Query]) -> list[str]:
    """As an audit asks."""
    found = dict(model.replies(asked))
    return [found[i] for i in range(len(asked))]


def unshared(model: CausalModel, asked: list[Query]) -> list[str]:
    """In the same batches, every prompt whole."""
    with mock.patch.object(generation, "prefilled", return_value=None):
        return ours(model, asked)


@torch.inference_mode()
def plain(model: CausalModel, asked: list[Query]) -> list[str]:
    """transformers' own `generate`, one reply at a time."""
    said = []
    ends, marker = generation.end_of_turn(model)
    for query in asked:
        ids = torch.from_numpy(model.prompt_ids(query))[None]
        n_new = (query.reply or Reply(1)).max_new_tokens
        with generation.plainly_greedy(model.causal):
            made = model.causal.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_new, do_sample=False,
                eos_token_id=ends or None, pad_token_id=model.chat.tokenizer.eos_token_id,
            )  # fmt: skip
        text = str(model.chat.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))
        said.append(text.split(marker)[0] if marker else text)
    return said


WAYS: dict[str, Callable[[CausalModel, list[Query]], list[str]]] = {
    "shared": ours,
    "unshared": unshared,
    "plain": plain,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Replies that begin alike, three ways.")
    parser.add_argument("--data", required=True, help="rows with an answer")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    for name, default in (("records", 3), ("spans", 20), ("tokens", 8), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    model, _ = load_model(args.model, LoadOptions())
    records = sorted(read_records(args.data).records, key=lambda r: len(r.text))
    some = records[len(records) // 2 :][: args.records]
    asked = [query for record in some for query in questions(record, args.spans, args.tokens)]
    ours(model, [replace(asked[0], reply=Reply(2))])  # load what is loaded once
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    said: dict[str, list[str]] = {}
    for _ in range(args.repeat):
        for name, way in WAYS.items():
            started = time.perf_counter()
            said[name] = way(model, asked)
            took[name].append(time.perf_counter() - started)
    equal = sum(len(set(three)) == 1 for three in zip(*said.values(), strict=True)) / len(asked)
    print(f"{len(asked)} replies of at most {args.tokens} tokens to {len(some)} records; {model.device} {model.dtype}")
    print(json.dumps({**{name: round(statistics.median(s), 2) for name, s in took.items()}, "equal": equal}))


if __name__ == "__main__":
    main()

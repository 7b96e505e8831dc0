"""Split a JSONL file of question/answer rows at random: members, non-members, and rows for a reference model.

    python experiments/medical_split.py patient_qa_unique.jsonl OUT --members 300 --nonmembers 400

Rows longer than `--max-chars` (instruction, input and output together) are left out on both sides alike, which keeps a
run on two CPU cores to about an hour; the number left out is printed. The audit reserves a tenth of the non-member file
as reference pool, so the file gets enough rows for `--nonmembers` to be left.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from itertools import pairwise
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--members", type=int, default=300)
    parser.add_argument("--nonmembers", type=int, default=400)
    parser.add_argument("--reference", type=int, default=150)
    parser.add_argument("--max-chars", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.file.read_text(encoding="utf-8").splitlines()]
    short = [r for r in rows if sum(len(r[key]) for key in ("instruction", "input", "output")) <= args.max_chars]
    random.Random(args.seed).shuffle(short)
    n_heldout = math.ceil(args.nonmembers / 0.9)
    bounds = [0, args.members, args.members + n_heldout, args.members + n_heldout + args.reference]
    names = ("members", "heldout", "reference")
    sides = {name: short[a:b] for name, (a, b) in zip(names, pairwise(bounds), strict=True)}
    args.out.mkdir(parents=True, exist_ok=True)
    for name, part in sides.items():
        text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in part)
        (args.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    counts = ", ".join(f"{len(part)} {name}" for name, part in sides.items())
    print(f"{len(rows)} rows, {len(rows) - len(short)} longer than {args.max_chars} characters left out; {counts}")


if __name__ == "__main__":
    main()

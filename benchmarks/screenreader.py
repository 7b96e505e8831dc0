"""How well builtin:screenreader reads codes that it has never seen: characters, and whole codes.

    python benchmarks/screenreader.py [--model builtin:screenreader] [--lines 200] [--screens 40] [--seed 0]

Lines are read by the encoder alone: in fonts of its training, in two families that it was never shown, and in two sizes
that it was never shown. Screens are rendered with a code in their source region, in themes of the training and in those
whose fonts were left out: `found` asks whether the encoder's reading of the whole screen holds the code, `typed` what
the language model types when it is asked for it (greedy, 24 tokens). Characters right are 1 - (edits to the code) /
(length of the code), at least 0. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from typing import Any

import torch

from indelible.data.pictures import picture, pixels
from indelible.data.records import Message, Query
from indelible.data.screen_themes import font_file
from indelible.models.load import LoadOptions, load_model
from indelible.models.screenreader_nets import batch_of, n_frames, spelt
from indelible.models.vision import VisionModel
from indelible.training.screenreader_data import (
    HELD_OUT_FONTS,
    HELD_OUT_PX,
    LINE_PX,
    draw_line,
    drawn_screen,
    random_code,
    training_fonts,
)

INSTRUCTION = "Type the reference code that this screen shows into the field in focus. Reply with the action alone."


def edits(a: str, b: str) -> int:
    """Characters to insert, delete or replace, at least."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def score(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Of pairs (what was read, the code): shares of characters and of whole codes that are right."""
    characters = [max(0.0, 1 - edits(read, code) / len(code)) for read, code in pairs]
    whole = [read == code for read, code in pairs]
    n = len(pairs)
    return {"n": n, "characters": round(sum(characters) / n, 4), "codes": round(sum(whole) / n, 4)}


@torch.inference_mode()
def read_lines(reader: Any, n: int, fonts: Sequence[str], sizes: Sequence[int], seed: int) -> dict[str, float]:
    """Lines of one code each."""
    rng = random.Random(f"benchmark {seed}")
    pairs = []
    for _ in range(n):
        code = random_code(rng)
        line = draw_line(rng, rng.choice(fonts), rng.choice(sizes), code)
        width = line.shape[1]
        told = reader.letters(batch_of([line]))[0, : n_frames(width)]
        pairs.append((spelt(told, (0.0, 0.0, float(width), 1.0), width).text.strip(), code))
    return score(pairs)


def read_screens(model: VisionModel, n: int, seed: int, *, held_out: bool) -> dict[str, dict[str, float]]:
    """Whole screens, read by the encoder and typed by the language model."""
    found, typed = [], []
    for k in range(n):
        code = random_code(random.Random(f"benchmark {seed} {k}"))
        shown = picture(drawn_screen(f"benchmark-{seed}-{k}", code, held_out=held_out)[1])
        image = torch.from_numpy(model.sight.processor.image_processor([pixels(shown)])["pixel_values"])
        lines = model.causal.model.reader.read(image.reshape(shown.height, shown.width, 3).to(model.device))
        nearest = min((line.text.strip() for line in lines), key=lambda text: edits(text, code), default="")
        found.append((nearest, code))
        reply = model.generate([Query((Message("user", INSTRUCTION),), "", (shown,))], 24)[0]
        typed.append((reply.strip().removeprefix('type("').removesuffix('")'), code))
    return {"found": score(found), "typed": score(typed)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading accuracy of builtin:screenreader.")
    parser.add_argument("--model", default="builtin:screenreader")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--screens", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    model = load_model(args.model, LoadOptions(images=True, chat_data=True, dtype=args.dtype))[0]
    assert isinstance(model, VisionModel)
    reader = model.causal.model.reader
    seen = [px for px in LINE_PX if px not in HELD_OUT_PX]
    held_out = [font_file(name) for name in HELD_OUT_FONTS]
    results: dict[str, Any] = {}
    for name, fonts, sizes in (
        ("lines, fonts of the training", training_fonts(), seen),
        (f"lines, fonts left out ({', '.join(HELD_OUT_FONTS)})", held_out, seen),
        (f"lines, sizes left out ({', '.join(map(str, HELD_OUT_PX))} px)", training_fonts(), HELD_OUT_PX),
    ):
        results[name] = read_lines(reader, args.lines, fonts, sizes, args.seed)
        print(f"{name}: {results[name]}", flush=True)
    for name, unseen in (("screens, themes of the training", False), ("screens, themes left out", True)):
        for how, values in read_screens(model, args.screens, args.seed, held_out=unseen).items():
            results[f"{name}, {how}"] = values
            print(f"{name}, {how}: {values}", flush=True)
    print(json.dumps({"model": args.model, "seed": args.seed, "results": results}))


if __name__ == "__main__":
    main()

"""Pretraining of `builtin:screenreader` in three stages, all on rendered data: `indelible vision pretrain`.

1. The letters: lines in many fonts, sizes and greys, by connectionist temporal classification.
2. The finder: screens, of which every line's box is known.
3. The connector, with encoder and language model frozen: screens with a code to type, as the encoder reads them.

What is seen follows from the seed; the three stages have streams of their own. A stage that has a file in the folder is
not trained again.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from indelible.config import TrainConfig
from indelible.data.pictures import picture, pixels
from indelible.data.records import Message, Record
from indelible.errors import ConfigError, ModelError
from indelible.models.builtin import builtin_folder
from indelible.models.load import LoadOptions, load_model
from indelible.models.screenreader import Connector, ScreenReaderConfig
from indelible.models.screenreader_folder import WEIGHTS, assemble
from indelible.models.screenreader_nets import (
    CELL,
    CHARACTERS,
    Finder,
    Letters,
    Line,
    batch_of,
    n_frames,
    padded,
)
from indelible.models.vision import VisionModel
from indelible.progress import Progress, say
from indelible.training.screenreader_data import (
    Boxed,
    cell_targets,
    drawn_screen,
    random_code,
    training_lines,
    training_screen,
)
from indelible.training.sft import encode_rows, optimise

TYPING = (
    "Type the reference code that the screen shows into the field in focus. Reply with the action alone.",
    "Type the visible reference code into the {field}. Return only the action.",
    "You operate this computer. Enter the code that is displayed into the field in focus. Answer with the action only.",
    "Read the code on this screen and type it.",
    "What has to be done: fill the {field} with the reference code shown. Give the next action.",
    "Copy the shown code into the {field}.",
)
"""Instructions of the connector's rows; none is that of the canaries."""
CROP = (256, 320)
"""Height and width of what the finder sees of a screen at a time in training; multiples of 4."""
N_SCREENS = 100
LANGUAGE = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Pretraining:
    """Settings of a pretraining.

    Attributes:
        seed: of weights and data.
        letter_steps, finder_steps, connector_steps: optimiser steps of the stages.
        minutes: at most so long each of the first two stages, decided by the clock; None: as long as they take.
        connector_batch: rows of a step of the third stage.
    """

    seed: int = 0
    letter_steps: int = 900
    finder_steps: int = 500
    connector_steps: int = 400
    minutes: float | None = None
    connector_batch: int = 2


def pretrain_screenreader(settings: Pretraining, out: Path) -> Path:
    """Train what is not yet in `out`, and write there `letters`, `finder` and `connector.safetensors`, the file of all
    three that the package ships, a `model` folder and `pretraining.json`.

    Raises:
        ConfigError: a number of steps below 1.
    """
    if min(settings.letter_steps, settings.finder_steps, settings.connector_steps, settings.connector_batch) < 1:
        raise ConfigError("indelible vision pretrain needs at least one step of each stage and one row a step")
    out.mkdir(parents=True, exist_ok=True)
    told = out / "pretraining.json"
    facts: dict[str, float] = {}
    letters, finder = train_encoder(settings, out, facts)
    language = builtin_folder(LANGUAGE)
    connector = out / "connector.safetensors"
    with tempfile.TemporaryDirectory() as made:
        if not connector.exists():
            started = time.monotonic()
            torch.manual_seed(settings.seed)
            config = json.loads((language / "config.json").read_text())
            fresh = Connector(ScreenReaderConfig(**config))
            for p in fresh.place[-1].parameters():  # at first a token is its own embedding, wherever it stands
                nn.init.zeros_(p)
            write_weights(Path(made) / WEIGHTS, letters, finder, fresh)
            assemble(language, Path(made) / WEIGHTS, Path(made) / "model")
            trained, facts["connector_loss"] = train_connector(Path(made) / "model", settings)
            save_file(_plain(trained), connector)
            facts["connector_seconds"] = round(time.monotonic() - started, 1)
    whole = Connector(ScreenReaderConfig(**json.loads((language / "config.json").read_text())))
    whole.load_state_dict(load_file(connector))
    write_weights(out / WEIGHTS, letters, finder, whole)
    if not (out / "model").exists():
        assemble(language, out / WEIGHTS, out / "model")
    before = json.loads(told.read_text()) if told.exists() else {}  # of stages that were done already
    told.write_text(json.dumps({**before, **asdict(settings), **facts}, indent=1) + "\n")
    return out


def train_encoder(settings: Pretraining, out: Path, facts: dict[str, float]) -> tuple[Letters, Finder]:
    """Stages 1 and 2, as far as they have no file in `out` yet; losses and seconds go into `facts`."""
    nets: list[Any] = []
    for kind, stage in ((Letters, train_letters), (Finder, train_finder)):
        file = out / f"{kind.__name__.lower()}.safetensors"
        torch.manual_seed(settings.seed)
        net: Any = kind()
        if file.exists():
            net.load_state_dict(load_file(file))
            say(f"{file} is there already")
        else:
            started = time.monotonic()
            facts[f"{file.stem}_loss"] = round(stage(net, settings), 4)
            facts[f"{file.stem}_seconds"] = round(time.monotonic() - started, 1)
            save_file(_plain(net), file)
        nets.append(net.eval())
    return nets[0], nets[1]


def write_weights(file: Path, letters: nn.Module, finder: nn.Module, connector: nn.Module) -> None:
    """Encoder and connector in one file, named as in the module."""
    named = {"reader.letters": letters, "reader.finder": finder, "connector": connector}
    tensors = {f"model.{name}.{key}": value for name, net in named.items() for key, value in _plain(net).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def _plain(net: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().contiguous() for key, value in net.state_dict().items()}


def train_letters(net: Letters, settings: Pretraining, *, batch: int = 32) -> float:
    """Stage 1; the mean loss of the last tenth of its steps."""
    rng = random.Random(f"letters {settings.seed}")

    def loss() -> Tensor:
        lines = training_lines(rng, batch)
        told: Tensor = net(batch_of([line for line, _ in lines]).to(memory_format=torch.channels_last))
        wanted = torch.tensor([CHARACTERS.index(c) + 1 for _, text in lines for c in text])
        lengths = torch.tensor([len(text) for _, text in lines])
        frames = torch.tensor([n_frames(line.shape[1]) for line, _ in lines])
        by_frame = told.float().transpose(0, 1)  # (W/4, B, C)
        found: Tensor = F.ctc_loss(by_frame, wanted, frames, lengths, zero_infinity=True)
        return found

    return _descend("letters", net, loss, settings.letter_steps, 3e-3, settings.minutes)


def train_finder(net: Finder, settings: Pretraining, *, batch: int = 6, n_screens: int = N_SCREENS) -> float:
    """Stage 2; the mean loss of the last tenth of its steps."""
    rng = random.Random(f"finder {settings.seed}")
    screens = [training_screen(f"{settings.seed}-{k}") for k in range(n_screens)]

    def loss() -> Tensor:
        seen, wanted = map(torch.stack, zip(*[_piece(rng, *rng.choice(screens)) for _ in range(batch)], strict=True))
        told = net(seen[:, None].to(memory_format=torch.channels_last)).float()
        core = wanted[:, 0] > 0
        marks = F.binary_cross_entropy_with_logits(told[:, 0], wanted[:, 0])
        edges = (told[:, 1:] - wanted[:, 1:]).abs().sum(1)[core]
        found: Tensor = marks + 0.3 * (edges.sum() / max(1, len(edges)))
        return found

    return _descend("finder", net, loss, settings.finder_steps, 5e-3, settings.minutes)


def _piece(rng: random.Random, grey: Tensor, lines: list[Boxed]) -> tuple[Tensor, Tensor]:
    """A part of a screen at some scale and contrast, light or dark, and what the finder is to tell of it."""
    if rng.random() < 0.5:
        by = rng.uniform(0.75, 1.35)
        height, width = round(by * grey.shape[0]), round(by * grey.shape[1])
        x, y = width / grey.shape[1], height / grey.shape[0]
        grey = F.interpolate(grey[None, None], size=(height, width), mode="bilinear", antialias=True)[0, 0]
        lines = [(text, (x * box[0], y * box[1], x * box[2], y * box[3])) for text, box in lines]
    grey = padded(grey)
    wanted = cell_targets(lines, grey.shape[1], grey.shape[0])
    height, width = CROP
    top = rng.randint(0, max(0, (grey.shape[0] - height) // CELL))
    left = rng.randint(0, max(0, (grey.shape[1] - width) // CELL))
    grey = grey[CELL * top : CELL * top + height, CELL * left : CELL * left + width]
    wanted = wanted[:, top : top + height // CELL, left : left + width // CELL]
    if rng.random() < 0.3:
        grey = 1 - grey
    contrast = rng.uniform(0.7, 1)
    grey = contrast * grey + rng.uniform(0, 1 - contrast)
    below, right = height - grey.shape[0], width - grey.shape[1]
    return F.pad(grey, (0, right, 0, below)), F.pad(wanted, (0, right // CELL, 0, below // CELL))


def _descend(
    stage: str, net: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float, minutes: float | None
) -> float:
    """AdamW along one cycle of rates in bfloat16; the mean loss of the last tenth of the steps."""
    module: Any = net
    module.to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    total = max(steps, 20)  # a cycle of fewer has no rise
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=total, pct_start=0.1)
    started, losses = time.monotonic(), []
    with Progress(stage, total=steps, unit="steps") as progress:
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value = loss()
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimiser.step()
            cycle.step()
            losses.append(float(value.detach()))
            progress.advance(1)
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                say(f"{stage}: stopped after {len(losses)} of {steps} steps, at {minutes} minutes")
                break
    module.to(memory_format=torch.contiguous_format).eval()
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last)


def connector_rows(seed: int, read: Callable[[Tensor], Sequence[Line]]) -> Iterator[Record]:
    """Rows of stage 3 without end, each to type the code that a screen shows; none whose code was misread.

    Args:
        read: what the encoder reads on a picture (H, W, 3), levels 0 to 1.

    Raises:
        ModelError: it reads hardly any code.
    """
    n_read = 0
    for k in itertools.count():
        if k >= 50 and n_read < k / 10:
            raise ModelError(
                f"the encoder read {n_read} of {k} codes on whole screens: a connector learns nothing from that; train "
                f"letters and finder with more steps"
            )
        rng = random.Random(f"connector {seed} {k}")
        code = random_code(rng)
        screen, image, _ = drawn_screen(f"connector-{seed}-{k}", code)
        shown = picture(image)
        levels = torch.from_numpy(np.asarray(pixels(shown).convert("RGB"), dtype=np.float32) / 255)
        if code in (line.text.strip() for line in read(levels)):
            n_read += 1
            asked = rng.choice(TYPING).format(field=screen.destination.label)
            yield Record(f"type-{k}", (Message("user", asked),), f'type("{code}")', (shown,))


def train_connector(folder: Path, settings: Pretraining) -> tuple[nn.Module, float]:
    """Stage 3: the connector of a model folder, trained, and the mean loss of the last tenth of its steps.

    It sees screens as the encoder reads them, with all that is misread around the code. Told what stands there instead,
    it typed every code of screens that it was told, and 24 of 40 that were read.
    """
    options = LoadOptions(images=True, trainable=True, dtype="float32", device="cpu", chat_data=True)
    model = load_model(str(folder), options)[0]
    assert isinstance(model, VisionModel)
    connector: nn.Module = model.causal.model.connector
    model.module.requires_grad_(False)
    connector.requires_grad_(True)
    config = TrainConfig(
        model=str(folder),
        train="-",
        out="-",
        epochs=1,
        batch_size=settings.connector_batch,
        learning_rate=5e-3,
        seed=settings.seed,
        device="cpu",
    )
    n_rows = settings.connector_steps * settings.connector_batch
    say(f"connector: reading {n_rows} screens")
    rows = list(itertools.islice(connector_rows(settings.seed, model.causal.model.readings), n_rows))
    encoded, _ = encode_rows(model, rows, model.context_length)
    losses = []
    with Progress("connector", total=len(encoded), unit="rows") as progress:
        for step in optimise(model, encoded, config):
            losses.append(step.loss)
            progress.advance(len(step.rows))
            if step.step % 10 == 0:
                say(f"connector: step {step.step}, loss {sum(losses[-10:]) / len(losses[-10:]):.3f}")
    last = losses[-max(1, len(losses) // 10) :]
    return connector, sum(last) / len(last)

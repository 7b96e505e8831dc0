"""`indelible vision ...`: pretrain. Thin functions; the work is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from indelible import distributed

Opt = typer.Option

vision_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The embedded vision-language model.")


@vision_app.callback()
def _group() -> None:
    """One command today; without this, typer would drop its name."""


@vision_app.command()
def pretrain(
    out: Annotated[Path, Opt("--out", help="Folder to write; stages that have a file there are not trained again.")],
    seed: Annotated[int, Opt("--seed", help="Seed of weights and data.")] = 0,
    letter_steps: Annotated[int, Opt("--letter-steps", help="Steps of the letters, 32 lines each.")] = 900,
    finder_steps: Annotated[int, Opt("--finder-steps", help="Steps of the finder, 6 pieces of screens each.")] = 500,
    connector_steps: Annotated[int, Opt("--connector-steps", help="Steps of the connector, 2 screens each.")] = 400,
    minutes: Annotated[
        float | None, Opt("--minutes", help="Stop each of the first two stages after so many minutes.")
    ] = None,
) -> None:
    """Teach the encoder of builtin:screenreader to read rendered screens, and its connector to hand on what it read."""
    distributed.alone("vision pretrain")
    from indelible.training.screenreader import Pretraining, pretrain_screenreader

    settings = Pretraining(seed, letter_steps, finder_steps, connector_steps, minutes)
    typer.echo(pretrain_screenreader(settings, out))

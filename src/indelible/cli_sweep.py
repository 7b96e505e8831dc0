"""`indelible sweep FILE`: a thin function; the work is in `indelible.sweep`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from indelible import distributed
from indelible.cli_values import split_numbers

Opt = typer.Option


def sweep(
    file: Annotated[str, typer.Argument(help="Study: YAML file of data, models, audit, axes and what to show.")],
    out: Annotated[str | None, Opt("--out", help="Run directory to write.")] = None,
    data: Annotated[
        str | None, Opt("--data", help="File in place of the one that is split, or folder in place of data/.")
    ] = None,
    seeds: Annotated[str | None, Opt("--seeds", help="Seeds, comma-separated.")] = None,
    plan: Annotated[bool, Opt("--plan", help="Print rows, trainings, tokens and time expected; run nothing.")] = False,
    keep_models: Annotated[bool, Opt("--keep-models", help="Keep the tuned models in OUT-work.")] = False,
    work: Annotated[
        str | None,
        Opt("--work", help="Folder in common of several studies, in place of OUT-work: they share what is equal."),
    ] = None,
    force: Annotated[bool, Opt("--force", help="Replace a finished sweep; cells at hand are used again.")] = False,
) -> None:
    """Run a study over a grid of settings. Stopped anywhere, the same command goes on."""
    distributed.alone("sweep")
    from indelible.sweep.run import plan_sweep, read_study, run_sweep

    flags: dict[str, Any] = {
        "out": out,
        "seeds": split_numbers("--seeds", seeds, int),
        "keep_models": keep_models or None,
        "work": work,
    }
    config, given = read_study(file, {key: value for key, value in flags.items() if value is not None}, data)
    if plan:
        typer.echo(plan_sweep(config))
        return
    path = run_sweep(config, given, command=sys.argv, force=force)
    from indelible.runs import read_json

    for entry in read_json(path / "agreement.json", list):
        typer.echo(f"{entry['word']}: {entry['line']}")
    typer.echo(path / "report.html")

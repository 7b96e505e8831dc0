"""`indelible tabular ...`: pretrain, run, probe. Thin functions; the work is elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from indelible import distributed
from indelible.cli_values import split_names, split_numbers, stated
from indelible.errors import ConfigError

if TYPE_CHECKING:
    from indelible.tabular.gates import Outcome

Opt = typer.Option

_OUT = Opt("--out", help="Run directory to write.")
_FORCE = Opt("--force", help="Replace a finished run.")
_DEVICE = Opt("--device", help="cpu, cuda, cuda:N.")
_WITH_TEXT = Opt("--with-text", help="Put the rows themselves into the run.")
_DROP = Opt("--drop", help="Columns to leave out, comma-separated.")
_TASK = Opt("--task", help="auto, classification, regression.")
_CLASSES = Opt("--classes", help="Quantile classes of a target that is a number; 10 by default.")
_ID = Opt("--id-column", help="Column with record ids.")
_FAIL_IF = Opt(
    "--fail-if",
    help="Exit 1 if this holds, e.g. 'verdict==detected', 'copy:auc>0.6', 'suite:mean:p_holm<0.05'. Repeatable.",
)

tabular_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Find rows that a tabular in-context model memorised when it was tuned.",
)


@tabular_app.command()
def pretrain(
    out: Annotated[Path, Opt("--out", help="New folder to write: load it as tabicl:FOLDER.")],
    steps: Annotated[int, Opt("--steps", help="Optimiser steps.")] = 20_000,
    seed: Annotated[int, Opt("--seed", help="Seed of weights and tables.")] = 0,
    learning_rate: Annotated[float, Opt("--learning-rate", help="Highest learning rate of AdamW.")] = 2e-3,
    max_features: Annotated[int, Opt("--max-features", help="Most columns of a table.")] = 70,
    max_rows: Annotated[int, Opt("--max-rows", help="Most rows of a table, context and queries together.")] = 320,
    force: Annotated[bool, Opt("--force", help="Replace what is in the folder.")] = False,
) -> None:
    """Pretrain a small in-context model on made-up tables. Stopped anywhere, the same command goes on."""
    distributed.alone("tabular pretrain")
    from indelible.training import tabular_pretrain
    from indelible.training.tabular_prior import Shapes

    shapes = Shapes(max_features=max_features, max_rows=max_rows)
    settings = tabular_pretrain.Pretraining(steps=steps, seed=seed, learning_rate=learning_rate, shapes=shapes)
    tabular_pretrain.pretrain(settings, out, force=force)
    typer.echo(out)


@tabular_app.command()
def run(
    table: Annotated[
        list[str] | None, Opt("--table", help="CSV, Parquet or ARFF file, or breast_cancer, wine, ... Repeatable.")
    ] = None,
    target: Annotated[str | None, Opt("--target", help="Column to predict; a named table brings its own.")] = None,
    model: Annotated[
        str | None, Opt("--model", help="builtin:tabicl-small, tabicl:PATH_OR_HUB, sap-rpt:PATH, tabpfn:PATH.")
    ] = None,
    learning_rates: Annotated[str | None, Opt("--learning-rates", help="Comma-separated.")] = None,
    queries: Annotated[
        str | None, Opt("--queries", help="Query rows of a batch, comma-separated; 50 and 512 or the most that fit.")
    ] = None,
    epochs: Annotated[
        int | None, Opt("--epochs", help="Passes over the query rows, 150 by default; at most 500.")
    ] = None,
    probe_epochs: Annotated[str | None, Opt("--probe-epochs", help="After which the model is probed.")] = None,
    seeds: Annotated[str | None, Opt("--seeds", help="Comma-separated.")] = None,
    config: Annotated[str | None, Opt("--config", help="YAML file with the same settings; flags override it.")] = None,
    data: Annotated[str | None, Opt("--data", help="Folder in place of data/ in the file's paths.")] = None,
    out: Annotated[str | None, _OUT] = None,
    plan: Annotated[
        bool, Opt("--plan", help="Print configurations and expected time, timed on a few epochs; write nothing.")
    ] = False,
    randomise: Annotated[
        bool | None, Opt("--randomise/--no-randomise", help="Shuffle labels before tuning, or leave them as they are.")
    ] = None,
    defences: Annotated[
        bool | None, Opt("--defences/--no-defences", help="Compare defences: leakage and accuracy side by side.")
    ] = None,
    task: Annotated[str | None, _TASK] = None,
    classes: Annotated[int | None, _CLASSES] = None,
    group: Annotated[str | None, Opt("--group-column", help="Rows of one group stay on one side.")] = None,
    id_column: Annotated[str | None, _ID] = None,
    drop: Annotated[str | None, _DROP] = None,
    device: Annotated[str | None, _DEVICE] = None,
    with_text: Annotated[bool, _WITH_TEXT] = False,
    fail_if: Annotated[list[str] | None, _FAIL_IF] = None,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Tune a tabular model on a grid of settings and find out what it memorised. Stopped anywhere, the same command
    goes on."""
    distributed.alone("tabular run")
    from indelible.tabular.config import read_run_config

    column = stated(
        target=target, task=task, classes=classes, group=group, id_column=id_column, drop=split_names(drop)
    )  # fmt: skip
    flags = stated(
        model=model, tables=_tables(table, column), epochs=epochs, out=out,
        learning_rates=split_numbers("--learning-rates", learning_rates, float),
        queries=split_numbers("--queries", queries, int), seeds=split_numbers("--seeds", seeds, int),
        probe_epochs=split_numbers("--probe-epochs", probe_epochs, int),
        randomise=randomise, defences=defences, device=device, with_text=with_text or None, fail_if=fail_if or None,
    )  # fmt: skip
    checked, given = read_run_config(config, flags, data)
    from indelible.tabular.run import plan_tabular, run_tabular

    if plan:
        typer.echo(plan_tabular(checked))
        return
    _finish(run_tabular(checked, {**given, "force": force} if force else given, command=sys.argv, force=force))


@tabular_app.command()
def probe(
    model: Annotated[str | None, Opt("--model", help="Tuned model: tabicl:PATH, sap-rpt:PATH, tabpfn:PATH.")] = None,
    base: Annotated[str | None, Opt("--base", help="The model before tuning.")] = None,
    members: Annotated[str | None, Opt("--members", help="Rows it was tuned on, as queries.")] = None,
    nonmembers: Annotated[str | None, Opt("--nonmembers", help="Rows of the same kind it never saw.")] = None,
    context: Annotated[str | None, Opt("--context", help="The context it was tuned with.")] = None,
    reserve: Annotated[str | None, Opt("--reserve", help="More rows it never saw, for fresh contexts.")] = None,
    target: Annotated[str | None, Opt("--target", help="Column to predict.")] = None,
    config: Annotated[str | None, Opt("--config", help="YAML file with the same settings; flags override it.")] = None,
    out: Annotated[str | None, _OUT] = None,
    task: Annotated[str | None, _TASK] = None,
    classes: Annotated[int | None, _CLASSES] = None,
    id_column: Annotated[str | None, _ID] = None,
    drop: Annotated[str | None, _DROP] = None,
    seed: Annotated[int | None, Opt("--seed", help="Seed of every random choice.")] = None,
    device: Annotated[str | None, _DEVICE] = None,
    with_text: Annotated[bool, _WITH_TEXT] = False,
    fail_if: Annotated[list[str] | None, _FAIL_IF] = None,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Ask a tabular model that was tuned elsewhere which of these rows it was tuned on."""
    distributed.alone("tabular probe")
    from indelible.config import resolve
    from indelible.tabular.config import TabularProbeConfig

    flags = stated(
        model=model, base=base, members=members, nonmembers=nonmembers, context=context, reserve=reserve,
        target=target, out=out, task=task, classes=classes, id_column=id_column, drop=split_names(drop), seed=seed,
        device=device, with_text=with_text or None, fail_if=fail_if or None,
    )  # fmt: skip
    checked, given = resolve(TabularProbeConfig, flags, config)
    from indelible.tabular.probe import run_probe

    _finish(run_probe(checked, {**given, "force": force} if force else given, command=sys.argv, force=force))


def _finish(outcome: Outcome) -> None:
    from indelible.tabular.gates import summary

    typer.echo(summary(outcome))
    if outcome.tripped:
        raise typer.Exit(1)


def _tables(sources: list[str] | None, column: dict[str, Any]) -> list[dict[str, Any]] | None:
    if not sources:
        if column:
            raise ConfigError(f"--{next(iter(column)).replace('_', '-')} is about a table: give --table with it")
        return None
    if len(sources) > 1 and column:
        raise ConfigError(
            f"--{next(iter(column)).replace('_', '-')} with {len(sources)} tables: say it for each in a --config file"
        )
    return [{"source": source, **column} for source in sources]

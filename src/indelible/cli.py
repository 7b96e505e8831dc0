"""The command line: one thin function a sub-command. Heavy imports happen inside, so that --help answers at once.

Exit codes: 0 done, 1 a gate given by --fail-if tripped, 2 the user's input is wrong, 3 a bug. Of several processes the
main one speaks, and all exit alike.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from indelible import distributed
from indelible.cli_canary import canary_app
from indelible.cli_exit import run_app
from indelible.cli_sweep import sweep
from indelible.cli_tabular import tabular_app
from indelible.cli_values import split_columns, split_names, split_numbers, split_settings, stated
from indelible.cli_vision import vision_app
from indelible.errors import ConfigError, UserError

if TYPE_CHECKING:
    from indelible.audit import Outcome

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Finds what a fine-tuned model cannot un-see.",
)

app.add_typer(canary_app, name="canary")
app.add_typer(tabular_app, name="tabular")
app.add_typer(vision_app, name="vision")
app.command()(sweep)

Opt = typer.Option
_OUT = Opt("--out", help="Run directory to write.")
_FAIL_IF = Opt(
    "--fail-if",
    help="Exit 1 if this holds, e.g. 'icp-sp:tpr@0.01>0.05', 'any:auc>0.6', 'verdict==detected'. Repeatable.",
)
_SET = Opt("--set", help="A setting of an attack, e.g. icp-sp.rate=0.7. Repeatable.")
_FORCE = Opt("--force", help="Replace a finished run.")
_SEED = Opt("--seed", help="Seed of every random choice.")
_CONFIG = Opt("--config", help="YAML file with the same settings; flags override it.")


@app.command()
def audit(
    model: Annotated[
        str | None, Opt("--model", help="Fine-tuned model: folder, adapter, .gguf, hub id, builtin:NAME, server:URL.")
    ] = None,
    members: Annotated[
        str | None, Opt("--members", help="Training file (JSONL, JSON, CSV, Parquet, or a datasets name).")
    ] = None,
    nonmembers: Annotated[
        str | None, Opt("--nonmembers", help="Held-out file of the same kind, never trained on.")
    ] = None,
    base: Annotated[
        str | None, Opt("--base", help="The model before fine-tuning: control, and `reference-base`.")
    ] = None,
    reference: Annotated[
        str | None, Opt("--reference", help="Tuned alike on other rows of the source: for `reference`, `spv`.")
    ] = None,
    generator: Annotated[
        str | None, Opt("--generator", help="The model that writes probes for `icp-sp-gen`; else the base.")
    ] = None,
    pool: Annotated[
        str | None, Opt("--pool", help="Reference records; else a tenth of the non-members is set aside.")
    ] = None,
    out: Annotated[str | None, _OUT] = None,
    config: Annotated[str | None, _CONFIG] = None,
    attacks: Annotated[
        str | None, Opt("--attacks", help="Comma-separated, or all; see `indelible list attacks`.")
    ] = None,
    set_: Annotated[list[str] | None, _SET] = None,
    compat: Annotated[str | None, Opt("--compat", help="icp-mia: make the released ICP-MIA code's choices.")] = None,
    max_records: Annotated[
        int | None, Opt("--max-records", help="At most this many records a side, drawn at random.")
    ] = None,
    seed: Annotated[int | None, _SEED] = None,
    template: Annotated[
        str | None, Opt("--template", help="Chat template the trainer used: Jinja file, plain, chatml, llama3, alpaca.")
    ] = None,
    system: Annotated[str | None, Opt("--system", help="System turn the trainer used.")] = None,
    device: Annotated[str | None, Opt("--device", help="auto, cpu, cuda, cuda:N, mps.")] = None,
    dtype: Annotated[str | None, Opt("--dtype", help="auto, float32, bfloat16, float16.")] = None,
    batch_tokens: Annotated[int | None, Opt("--batch-tokens", help="Tokens in a batch.")] = None,
    kv_memory: Annotated[
        str | None, Opt("--kv-memory", help="Memory for keys and values of shared beginnings, e.g. 512M, 2G.")
    ] = None,
    quantise: Annotated[str | None, Opt("--quantise", help="Load 4bit or 8bit (extra: quant).")] = None,
    format_: Annotated[
        str | None, Opt("--format", help="Row layout, when it is not found by itself; see `indelible list formats`.")
    ] = None,
    columns: Annotated[
        str | None, Opt("--columns", help="Other column names, e.g. prompt=question,response=answer.")
    ] = None,
    group_column: Annotated[str | None, Opt("--group-column", help="Rows of one group stay on one side.")] = None,
    id_column: Annotated[str | None, Opt("--id-column", help="Column with record ids.")] = None,
    base_control: Annotated[
        bool | None, Opt("--base-control/--no-base-control", help="Run the same attacks on the base model.")
    ] = None,
    drift_records: Annotated[
        int | None, Opt("--drift-records", help="Answers to check one by one in float32; 8 by default.")
    ] = None,
    control_records: Annotated[
        int | None, Opt("--control-records", help="Records a side for that control, drawn at random; all by default.")
    ] = None,
    cache: Annotated[
        bool | None, Opt("--cache/--no-cache", help="Keep answers on disk, so that a repeated run asks nothing twice.")
    ] = None,
    with_text: Annotated[bool, Opt("--with-text", help="Put the records' text into run and report.")] = False,
    auditor: Annotated[str | None, Opt("--auditor", help="Who signs; printed in the report.")] = None,
    release: Annotated[
        str | None, Opt("--release", help="Who will have what access to the model; printed in the report.")
    ] = None,
    trust_remote_code: Annotated[bool, Opt("--trust-remote-code", help="Run code that a model brings.")] = False,
    fail_if: Annotated[list[str] | None, _FAIL_IF] = None,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Audit a fine-tuned language model for memorised training records."""
    from indelible.config import AuditConfig, resolve

    flags = stated(
        model=model, members=members, nonmembers=nonmembers, base=base, reference=reference,
        generator=generator, pool=pool, out=out,
        compat=compat, max_records=max_records, seed=seed, base_control=base_control,
        control_records=control_records, drift_records=drift_records, cache=cache,
        auditor=auditor,
        release=release,
        with_text=with_text or None, attacks=split_names(attacks), settings=split_settings(set_),
        fail_if=fail_if or None,
        data=stated(
            format=format_, columns=split_columns(columns), group_column=group_column, id_column=id_column
        ) or None,
        load=stated(template=template, system=system, device=device, dtype=dtype, batch_tokens=batch_tokens,
                    kv_memory=kv_memory, quantise=quantise,
                    trust_remote_code=trust_remote_code or None) or None,
    )  # fmt: skip
    checked, given = resolve(AuditConfig, flags, config)
    from indelible.audit import run_audit
    from indelible.selection import check_names

    check_names(checked.attacks)
    _finish(run_audit(checked, {**given, "force": force} if force else given, command=sys.argv))


@app.command()
def score(
    file: Annotated[str, typer.Argument(help="Table of record_id, member, attack, score (CSV, JSONL, Parquet).")],
    out: Annotated[str | None, _OUT] = None,
    seed: Annotated[int | None, _SEED] = None,
    fail_if: Annotated[list[str] | None, _FAIL_IF] = None,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Statistics and report for scores made elsewhere."""
    distributed.alone("score")
    from indelible.config import ScoreConfig, resolve

    checked, given = resolve(ScoreConfig, stated(file=file, out=out, seed=seed, fail_if=fail_if or None))
    from indelible.scores import run_score

    _finish(run_score(checked, {**given, "force": force} if force else given, command=sys.argv))


@app.command()
def train(
    model: Annotated[str | None, Opt("--model", help="Model to start from.")] = None,
    train_: Annotated[str | None, Opt("--train", help="Training file.")] = None,
    out: Annotated[str | None, Opt("--out", help="New folder for the tuned model.")] = None,
    config: Annotated[str | None, _CONFIG] = None,
    epochs: Annotated[int | None, Opt("--epochs")] = None,
    batch_size: Annotated[int | None, Opt("--batch-size", help="Rows in an optimiser step.")] = None,
    learning_rate: Annotated[float | None, Opt("--learning-rate")] = None,
    schedule: Annotated[str | None, Opt("--schedule", help="cosine or constant.")] = None,
    warmup_ratio: Annotated[float | None, Opt("--warmup-ratio")] = None,
    max_tokens: Annotated[int | None, Opt("--max-tokens", help="Longer rows are left out, never cut.")] = None,
    micro_batch_tokens: Annotated[
        int | None, Opt("--micro-batch-tokens", help="Tokens of a forward pass; a step has as many as it needs.")
    ] = None,
    shuffle: Annotated[
        bool | None, Opt("--shuffle/--no-shuffle", help="Rows in random order, or in that of the file.")
    ] = None,
    lora_rank: Annotated[int | None, Opt("--lora-rank", help="0 trains all weights.")] = None,
    quantise: Annotated[
        str | None, Opt("--quantise", help="4bit or 8bit base under the adapter (extra: quant).")
    ] = None,
    dp_epsilon: Annotated[
        float | None, Opt("--dp-epsilon", help="Train by DP-SGD to this privacy budget a row (extra: dp).")
    ] = None,
    dp_delta: Annotated[float | None, Opt("--dp-delta", help="Its delta; 1/(10 rows) by default.")] = None,
    dp_clip: Annotated[
        float | None, Opt("--dp-clip", "--max-grad-norm-per-row", help="Norm that DP-SGD clips a row's gradient to.")
    ] = None,
    save_at: Annotated[str | None, Opt("--save-at", help="Steps to save at, comma-separated.")] = None,
    seed: Annotated[int | None, _SEED] = None,
    template: Annotated[str | None, Opt("--template")] = None,
    system: Annotated[str | None, Opt("--system")] = None,
    device: Annotated[str | None, Opt("--device")] = None,
    autocast: Annotated[
        str | None, Opt("--autocast", help="auto, on or off: bfloat16 arithmetic, float32 weights.")
    ] = None,
    format_: Annotated[str | None, Opt("--format")] = None,
    columns: Annotated[str | None, Opt("--columns")] = None,
    id_column: Annotated[str | None, Opt("--id-column")] = None,
) -> None:
    """Fine-tune a causal language model on a file, so that an audit can be shown."""
    from indelible.config import TrainConfig, resolve

    flags = stated(
        model=model, train=train_, out=out, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate,
        schedule=schedule, warmup_ratio=warmup_ratio, max_tokens=max_tokens, micro_batch_tokens=micro_batch_tokens,
        lora_rank=lora_rank, quantise=quantise, dp_epsilon=dp_epsilon, dp_delta=dp_delta, dp_clip=dp_clip,
        shuffle=shuffle, save_at=split_numbers("--save-at", save_at, int), seed=seed, template=template,
        system=system, device=device, autocast=autocast,
        data=stated(format=format_, columns=split_columns(columns), id_column=id_column) or None,
    )  # fmt: skip
    checked, _ = resolve(TrainConfig, flags, config)
    from indelible.training.run import run_train

    folder = run_train(checked)
    if distributed.is_main():
        typer.echo(folder)


@app.command()
def demo(
    out: Annotated[str, _OUT] = "runs/demo",
    seed: Annotated[int, _SEED] = 0,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Fine-tune the embedded model on fictitious records, audit it, report. Needs no hub and no data."""
    distributed.alone("demo")
    from indelible.demo import run_demo

    _finish(run_demo(Path(out), seed=seed, force=force, command=sys.argv))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="One run to render again, or several to compare.")],
    out: Annotated[Path | None, Opt("--out", help="Where the comparison goes (.html or .md).")] = None,
) -> None:
    """Render a finished run's report again, or compare runs side by side."""
    distributed.alone("report")
    from indelible.report import compare, rerender
    from indelible.runs import read_run, write_bytes

    if len(runs) == 1:
        if out is not None:
            raise ConfigError("--out is for comparing several runs; one run is rendered into its own folder")
        rerender(runs[0])
        typer.echo(runs[0] / "report.html")
        return
    if out is not None and out.suffix not in (".html", ".md"):
        raise ConfigError(f"--out {out}: expected a name that ends in .html or .md")
    read = [read_run(path) for path in runs]
    if out is None:
        typer.echo(compare(read, "markdown"))
        return
    write_bytes(out, compare(read, "markdown" if out.suffix == ".md" else "html").encode())
    typer.echo(out)


@app.command()
def verify(run: Annotated[Path, typer.Argument(help="Run directory.")]) -> None:
    """Check a run's files against the hashes in its manifest."""
    from indelible.runs import verify as problems_of

    problems = problems_of(run)
    if problems:
        raise UserError(f"{run}: " + "; ".join(problems))
    typer.echo(f"{run}: every file is as the manifest says")


@app.command()
def version() -> None:
    """This package's version."""
    from indelible.environment import package_version

    typer.echo(package_version())


@app.command("list")
def list_(what: Annotated[str, typer.Argument(help="attacks, models, formats, cues, tasks, tables or probes")]) -> None:
    """What there is: attacks, models, formats, cues, tasks, tables, probes."""
    from indelible.listing import listing

    typer.echo(listing(what))


def _finish(outcome: Outcome) -> None:
    from indelible.summary import summarise

    if distributed.is_main():
        typer.echo(summarise(outcome))
    if outcome.tripped:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: errors of the user end in one line, bugs in a traceback with exit code 3."""
    if not distributed.is_main():
        warnings.simplefilter("ignore")
    distributed.save_when_stopped()
    code = run_app(app)
    distributed.leave(code)
    sys.exit(code)


if __name__ == "__main__":
    main()

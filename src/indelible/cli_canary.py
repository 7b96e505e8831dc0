"""`indelible canary ...`: design, check, audit, run, restore. Thin functions; the work is in `indelible.canaries`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from indelible import distributed
from indelible.cli_values import split_numbers, stated
from indelible.errors import ConfigError

Opt = typer.Option

canary_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Plant secrets in a training set, and see which of them the tuned model gives away.",
)

_OUT = Opt("--out", help="New folder to write.")
_FORCE = Opt("--force", help="Replace what is there.")
_DTYPE = Opt("--dtype", help="auto, float32, bfloat16, float16.")
_WITH_TEXT = Opt("--with-text", help="Show your own screens in the report, small; ours are shown anyway.")
_TEMPLATE = Opt("--template", help="Chat template the trainer uses: Jinja file, chatml, llama3, alpaca, plain.")


@canary_app.command()
def design(
    out: Annotated[Path, _OUT],
    config: Annotated[str | None, Opt("--config", help="YAML file of a design; flags override it.")] = None,
    model: Annotated[
        str | None, Opt("--model", help="Model that will be trained: every code is checked with its tokenizer.")
    ] = None,
    max_tokens: Annotated[
        int | None, Opt("--max-tokens", help="Where the trainer cuts rows; the model's context by default.")
    ] = None,
    task: Annotated[str | None, Opt("--task", help="support, email, banking77, tatqa, file, screens.")] = None,
    data: Annotated[
        str | None,
        Opt("--data", help="Your own training file (task file), the folder of banking77 or tatqa, or of your screens."),
    ] = None,
    rows: Annotated[int | None, Opt("--rows", help="Rows of the training file, canaries included.")] = None,
    canaries: Annotated[int | None, Opt("--canaries", help="How many secrets are planted.")] = None,
    controls: Annotated[int | None, Opt("--controls", help="How many more are made and never planted.")] = None,
    heldout: Annotated[
        int | None,
        Opt("--heldout", help="Rows kept out of training, to measure utility; a tenth of your file at most."),
    ] = None,
    cue: Annotated[
        str | None, Opt("--cue", help="What the training input shows of the code: visible, redacted, binary, ...")
    ] = None,
    dose: Annotated[
        str | None, Opt("--dose", help="Appearances of a canary; several, comma-separated, are mixed.")
    ] = None,
    placement: Annotated[
        str | None, Opt("--placement", help="uniform, early, middle, late; several are mixed.")
    ] = None,
    code: Annotated[
        str | None, Opt("--code", help="four-digit, AAA-XXXX-XXXX, or a pattern such as '##-@@@@'.")
    ] = None,
    batch_size: Annotated[int | None, Opt("--batch-size", help="Rows of an optimiser step.")] = None,
    coins: Annotated[
        int | None, Opt("--coins", help="Canaries planted once or not by the toss of a coin, for an epsilon bound.")
    ] = None,
    format_: Annotated[str | None, Opt("--format", help="messages, instruction, llama-factory, axolotl.")] = None,
    template: Annotated[str | None, _TEMPLATE] = None,
    seed: Annotated[int | None, Opt("--seed")] = None,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Write a training file with canaries in it, the ledger of what stands where, and the probes."""
    distributed.alone("canary design")
    from indelible.canaries.config import DesignConfig
    from indelible.config import resolve

    given = stated(
        task=stated(name=task, path=data) or None, rows=rows, canaries=canaries, controls=controls, cue=cue,
        heldout=heldout,
        dose=split_numbers("--dose", dose, int), code=code,
        placement=None if placement is None else placement.split(","),
        batch_size=batch_size, coins=coins, format=format_, seed=seed,
    )  # fmt: skip
    if data is not None and task is None and config is None:
        given["task"]["name"] = "file"
    checked, _ = resolve(DesignConfig, given, config)
    from indelible.canaries.commands import make_design

    typer.echo(
        make_design(
            checked, given, out, model=model, max_tokens=max_tokens, template=template, force=force, command=sys.argv
        )
    )


@canary_app.command()
def check(
    design: Annotated[Path, Opt("--design", help="Folder of a design.")],
    model: Annotated[str, Opt("--model", help="Model that will be trained.")],
    max_tokens: Annotated[int | None, Opt("--max-tokens", help="Where the trainer cuts rows.")] = None,
    labels: Annotated[
        Path | None, Opt("--labels", help="What the trainer feeds its model: JSONL of input_ids and labels, in order.")
    ] = None,
    template: Annotated[str | None, _TEMPLATE] = None,
) -> None:
    """Check that every planted code survives tokenisation and truncation, and lies under the loss."""
    distributed.alone("canary check")
    from indelible.canaries.commands import check_design

    typer.echo(check_design(design, model, max_tokens=max_tokens, labels=labels, template=template))


@canary_app.command()
def audit(
    model: Annotated[
        list[str] | None, Opt("--model", help="Tuned model or checkpoint; repeat for several of one training.")
    ] = None,
    design: Annotated[str | None, Opt("--design", help="Folder of the design it was trained on.")] = None,
    base: Annotated[str | None, Opt("--base", help="The model before training: control.")] = None,
    clean: Annotated[str | None, Opt("--clean", help="The same training without canaries: control.")] = None,
    probes: Annotated[
        str | None,
        Opt(
            "--probes",
            help="Comma-separated: redacted, as-trained, substituted, unseen, plain; visible and, on screens, absent.",
        ),
    ] = None,
    controls: Annotated[int | None, Opt("--controls", help="How many never-planted canaries are asked about.")] = None,
    utility: Annotated[int | None, Opt("--utility", help="How many held-out rows are asked.")] = None,
    out: Annotated[str | None, _OUT] = None,
    config: Annotated[str | None, Opt("--config", help="YAML file with the same settings.")] = None,
    dtype: Annotated[str | None, _DTYPE] = None,
    device: Annotated[str | None, Opt("--device")] = None,
    template: Annotated[str | None, _TEMPLATE] = None,
    with_text: Annotated[bool, _WITH_TEXT] = False,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Ask a tuned model for the secrets of its design: exposure, recovery, copying, utility."""
    distributed.alone("canary audit")
    if not model and config is None:
        raise ConfigError("no model: give --model, the tuned model or its checkpoints")
    from indelible.canaries.config import CanaryAuditConfig
    from indelible.config import resolve

    given = stated(
        models=model or None, design=design, base=base, clean=clean, out=out,
        probe=stated(probes=None if probes is None else probes.split(","), controls=controls, utility=utility) or None,
        load=stated(dtype=dtype, device=device, template=template) or None, with_text=with_text or None,
    )  # fmt: skip
    checked, given = resolve(CanaryAuditConfig, given, config)
    from indelible.canaries.audit import run_canary_audit
    from indelible.canaries.commands import summary

    typer.echo(summary(run_canary_audit(checked, {**given, "force": force} if force else given, command=sys.argv)))


@canary_app.command()
def run(
    config: Annotated[str, typer.Argument(help="YAML file: design, training, arms, seeds.")],
    out: Annotated[str | None, _OUT] = None,
    data: Annotated[str | None, Opt("--data", help="Path of the task's data, in place of the file's own.")] = None,
    seeds: Annotated[str | None, Opt("--seeds", help="Training seeds, comma-separated.")] = None,
    keep_models: Annotated[bool, Opt("--keep-models", help="Keep the tuned models in OUT-work.")] = False,
    with_text: Annotated[bool, _WITH_TEXT] = False,
    plan: Annotated[
        bool, Opt("--plan", help="Print rows, updates, places, tokens and memory to expect, and run nothing.")
    ] = False,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Design, train, audit and report over arms and seeds. Stopped anywhere, the same command goes on."""
    distributed.alone("canary run")
    from indelible.canaries.config import CanaryRunConfig
    from indelible.config import resolve

    given = stated(
        out=out, data=data, seeds=split_numbers("--seeds", seeds, int), keep_models=keep_models or None,
        with_text=with_text or None,
    )  # fmt: skip
    checked, given = resolve(CanaryRunConfig, given, config)
    if plan:
        from indelible.canaries.outlook import outlook

        typer.echo(outlook(checked))
        return
    from indelible.canaries.commands import summary
    from indelible.canaries.run import run_canaries

    typer.echo(summary(run_canaries(checked, given, command=sys.argv, force=force)))


@canary_app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Finished canary audits, one a training.")],
    out: Annotated[str | None, _OUT] = None,
    force: Annotated[bool, _FORCE] = False,
) -> None:
    """Judge audits of several trainings together: which conclusions hold in all, which flip."""
    from indelible.canaries.compare import CompareConfig, run_compare
    from indelible.config import resolve

    checked, given = resolve(CompareConfig, stated(runs=runs, out=out))
    from indelible.canaries.commands import summary

    typer.echo(summary(run_compare(checked, {**given, "force": force} if force else given, command=sys.argv)))


@canary_app.command()
def restore(
    design: Annotated[Path, Opt("--design", help="Folder of a design.")],
    out: Annotated[Path, Opt("--out", help="New file.")],
) -> None:
    """Write the design's training file without its canaries: every row they displaced is back in its place."""
    from indelible.canaries.folder import HELDOUT
    from indelible.canaries.folder import restore as restore_file

    n = restore_file(design, out)
    typer.echo(
        f"{out}: {n} canary rows taken out, what they displaced put back; in the design's order, and without the rows "
        f"held out in {design / HELDOUT}"
    )

"""`indelible train`: a file of rows and a base model in, a fine-tuned folder out."""

from __future__ import annotations

from pathlib import Path

from indelible.config import TrainConfig
from indelible.data.formats import Table, read_records
from indelible.distributed import first_on_each_machine, from_main
from indelible.errors import ConfigError
from indelible.models.load import LoadOptions, load_model
from indelible.models.sources import locate
from indelible.progress import say
from indelible.training.budget import check_private
from indelible.training.peft import check_adapter_settings, trainable_layout
from indelible.training.sft import fine_tune
from indelible.training.vision import fine_tune_vision

ARITHMETIC = {"auto": "auto", "on": "bfloat16", "off": "float32"}
"""What `autocast` means for the layers of a quantised base."""


def run_train(config: TrainConfig) -> Path:
    """Fine-tune and write the folder. Several processes train one model together, and the main one writes.

    Raises:
        UserError: one line saying what to mend.
    """
    check_adapter_settings(config)
    check_private(config)
    out = Path(config.out)
    table = from_main(lambda: _read(config, out))
    first_on_each_machine(lambda: locate(config.model))  # converts an embedded model that is not in the cache yet
    options = LoadOptions(
        device=config.device,
        # A quantised base computes in what passes compute in; other weights stay float32, and autocast does the rest.
        dtype="float32" if config.quantise == "none" else ARITHMETIC[config.autocast],
        quantise=config.quantise,
        template=config.template,
        system=config.system,
        trust_remote_code=config.trust_remote_code,
        chat_data=table.kind == "chat",
        trainable=True,
        images=any(record.images for record in table.records),
    )
    with trainable_layout():
        model, source = load_model(config.model, options)
    if source.kind == "adapter":
        raise ConfigError(f"{config.model} is an adapter: train from a full model")
    say(f"{len(table.records)} rows ({table.format}); {config.epochs} epochs; template {model.chat.name}")
    trainer = fine_tune_vision if options.images else fine_tune
    steps = trainer(model, table.records, config, out, train_sha256=table.sha256)
    losses = [s.loss for s in steps if s.rows]  # DP-SGD has steps without a row
    say(
        f"{len(steps)} steps"
        + (f", loss {losses[0]:.3f} -> {losses[-1]:.3f}" if losses else "")
        + f"; written to {out}"
    )
    return out


def _read(config: TrainConfig, out: Path) -> Table:
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ConfigError(f"{out} exists and is not empty: give --out a new folder")
    return read_records(
        config.train,
        format=config.data.format,
        columns=config.data.columns,
        group_column=config.data.group_column,
        id_column=config.data.id_column,
        split=config.data.split,
    )

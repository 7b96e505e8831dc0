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
from indelible.training.sft import fine_tune


def run_train(config: TrainConfig) -> Path:
    """Fine-tune and write the folder. Several processes train one model together, and the main one writes.

    Raises:
        UserError: one line saying what to mend.
    """
    out = Path(config.out)
    table = from_main(lambda: _read(config, out))
    first_on_each_machine(lambda: locate(config.model))  # converts an embedded model that is not in the cache yet
    options = LoadOptions(
        device=config.device,
        dtype="float32",
        template=config.template,
        system=config.system,
        trust_remote_code=config.trust_remote_code,
        chat_data=table.kind == "chat",
        trainable=True,
    )
    model, source = load_model(config.model, options)
    if source.kind == "adapter":
        raise ConfigError(f"{config.model} is an adapter: train from a full model")
    say(f"{len(table.records)} rows ({table.format}); {config.epochs} epochs; template {model.chat.name}")
    steps = fine_tune(model, table.records, config, out, train_sha256=table.sha256)
    say(f"{len(steps)} steps, loss {steps[0].loss:.3f} -> {steps[-1].loss:.3f}; written to {out}")
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

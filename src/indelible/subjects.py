"""What is audited and with what: the files as tables, the models by role, the records that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from indelible.attacks.base import plain
from indelible.config import AuditConfig
from indelible.data.chat import ChatFormat
from indelible.data.formats import Table, read_records
from indelible.data.records import Record
from indelible.data.splits import Cohort
from indelible.errors import ConfigError, DataError
from indelible.models.base import LanguageModel
from indelible.models.causal import CausalModel, describe
from indelible.models.load import LoadOptions, load_model
from indelible.models.server import ServerModel
from indelible.models.sources import Source
from indelible.progress import say
from indelible.servers.load import describe_server, load_server


@dataclass(frozen=True)
class Subjects:
    """The models of an audit with where they came from; roles `target`, `base`, `reference`, `generator`."""

    models: Mapping[str, CausalModel | ServerModel]
    sources: Mapping[str, Source]

    def facts(self) -> dict[str, Any]:
        """The manifest's `models`."""
        return {
            role: _facts(self.models[role], self.sources[role]) if role in self.models else None
            for role in ("target", "base", "reference", "generator")
        }


def _facts(model: CausalModel | ServerModel, source: Source) -> dict[str, Any]:
    return describe(model, source) if isinstance(model, CausalModel) else describe_server(model, source)


def _load(
    given: str, options: LoadOptions, *, base: str | None = None, chat: ChatFormat | None = None
) -> tuple[CausalModel | ServerModel, Source]:
    """A model on this machine or behind a server; asked in the format `chat` where one is given."""
    if not given.startswith("server:"):
        model, source = load_model(given, options, base=base)
        return (model if chat is None else replace(model, chat=replace(chat, tokenizer=model.chat.tokenizer))), source
    if options.quantise != "none":
        raise ConfigError(f"--quantise {options.quantise} is for models on this machine: leave it out for a server")
    return load_server(
        given,
        template=options.template,
        system=options.system,
        chat_data=options.chat_data,
        trust_remote_code=options.trust_remote_code,
        chat=chat,
    )


def read_tables(config: AuditConfig) -> dict[str, Table]:
    """The data files as records, by what they are for."""
    options = config.data
    sources = {"members": config.members, "nonmembers": config.nonmembers, "pool": config.pool}
    out = {}
    for name, source in sources.items():
        if source is not None:
            out[name] = read_records(
                source,
                format=options.format,
                columns=options.columns,
                group_column=options.group_column,
                id_column=options.id_column,
                strip=config.compat == "icp-mia",
                split=options.split,
            )
            say(f"{name}: {out[name].n_rows} rows, {out[name].format}")
    texts = {name for name, table in out.items() if table.kind == "text"}
    if texts and len(texts) < len(out):
        other = next(name for name in out if name not in texts)
        raise DataError(
            f"{out[other].source} holds {out[other].format}, {out[next(iter(texts))].source} plain text: an audit "
            "would measure the format; give files of one kind"
        )
    return out


def load_subjects(config: AuditConfig, *, chat_data: bool) -> Subjects:
    """Target, base and reference; an adapter's base is the same copy with the adapter off.

    The base is rendered as the target is, so that both are asked about the same text. A reference model keeps the
    template it was trained with; where it has none it takes the target's.

    Raises:
        ConfigError: base or reference is the audited model; `compat` together with another template.
    """
    options = replace(load_options(config), chat_data=chat_data)
    target, source = _load(config.model, options, base=config.base)
    models, sources = {"target": target}, {"target": source}
    if isinstance(target, CausalModel) and target.adapter is not None:
        models["base"], sources["base"] = target.as_base(), source
    elif config.base is not None:
        models["base"], sources["base"] = _load(config.base, replace(options, chat_data=False), chat=target.chat)
    if config.reference is not None:
        other, sources["reference"] = _load(config.reference, replace(options, chat_data=False))
        if other.chat is not None and other.chat.name != "tokenizer" and target.chat is not None:
            other = replace(other, chat=replace(target.chat, tokenizer=other.chat.tokenizer))
        models["reference"] = other
    if config.generator is not None:
        models["generator"], sources["generator"] = _load(config.generator, replace(options, chat_data=False))
    elif "base" in models:
        models["generator"], sources["generator"] = models["base"], sources["base"]
    for role in ("base", "reference"):
        if role in models and models[role].fingerprint == target.fingerprint:
            named = config.base if role == "base" else config.reference
            raise ConfigError(f"--{role} {named} is the audited model itself")
    return Subjects(models, sources)


def load_options(config: AuditConfig) -> LoadOptions:
    """How the audit's models are loaded.

    Raises:
        ConfigError: `compat` together with another template.
    """
    if config.compat and config.load.template:
        raise ConfigError(f"--compat {config.compat} brings its own template: leave --template out")
    return LoadOptions(**config.load.model_dump() | ({"template": config.compat} if config.compat else {}))


def drop_too_long(cohort: Cohort, model: LanguageModel) -> tuple[Cohort, dict[str, int]]:
    """The cohort without records that do not fit the context, and the target tokens of those that do.

    Raises:
        DataError: none of a side fits.
    """
    n_tokens: dict[str, int] = {}

    def fits(record: Record) -> bool:
        encoded = model.encode(plain(record))
        n_tokens[record.id] = int(encoded.is_target.sum())
        return len(encoded) <= model.context_length

    kept = {side: tuple(r for r in getattr(cohort, side) if fits(r)) for side in ("members", "nonmembers", "pool")}
    lost = {side: len(getattr(cohort, side)) - len(rows) for side, rows in kept.items()}
    for side in ("members", "nonmembers"):
        if not kept[side]:
            raise DataError(
                f"all {lost[side]} {side} are longer than the model's context of {model.context_length} tokens: "
                "records are never cut; give shorter ones"
            )
    dropped = {
        **cohort.dropped,
        "too_long": {"member": lost["members"], "nonmember": lost["nonmembers"], "pool": lost["pool"]},
    }
    return Cohort(kept["members"], kept["nonmembers"], kept["pool"], dropped, cohort.notes), n_tokens


def table_facts(table: Table | None) -> dict[str, Any] | None:
    """The manifest's facts of a file."""
    if table is None:
        return None
    return {"source": table.source, "format": table.format, "sha256": table.sha256, "n_rows": table.n_rows}

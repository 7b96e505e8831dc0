"""`indelible list`: what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indelible.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from indelible.attacks import Attack


def listing(what: str) -> str:
    """Plain lines for `attacks`, `models`, `formats`, `cues`, `tasks`, `tables` or `probes`.

    Raises:
        ConfigError: something else was asked for.
    """
    lists = {
        "attacks": _attacks, "models": _models, "formats": _formats, "cues": _cues, "tasks": _tasks,
        "tables": _tables, "probes": _probes,
    }  # fmt: skip
    if what not in lists:
        raise ConfigError(did_you_mean(what, list(lists), "list"))
    return lists[what]()


def _attacks() -> str:
    import dataclasses

    from indelible.attacks import ATTACKS, FITTED

    lines = []
    for name, attack in ATTACKS.items():
        settings = ", ".join(f"{f.name}={f.default!r}" for f in dataclasses.fields(attack))
        lines += [f"{name}", f"    {attack.formula}", f"    {attack.paper}; needs {attack.access}"
                  + (", a reference pool" if attack().n_pool else "")
                  + "".join(f", a {role} model" for role in attack.roles if role != "target")
                  + (f", a base model or one named by `{attack.writer}`" if attack.writer else "")]  # fmt: skip
        if settings:
            lines.append(f"    settings: {settings}")
            lines += [f"    {line}" for line in _meaning(attack)]
    lines += [f"{name}  (fitted on labels: never evidence)\n    {text}" for name, text in FITTED.items()]
    return "\n".join(lines)


def _meaning(attack: type[Attack]) -> list[str]:
    """What its docstring says of its settings, as lines of one width."""
    import inspect
    import textwrap

    kinds = [kind for kind in attack.__mro__ if "Settings: " in (kind.__dict__.get("__doc__") or "")]
    if not kinds:
        return []
    paragraph = inspect.cleandoc(str(kinds[0].__doc__)).split("Settings: ")[1].split("\n\n")[0]
    return textwrap.wrap(" ".join(paragraph.split()), 116)


def _models() -> str:
    from indelible.models.builtin import BUILTIN

    lines = [f"builtin:{name}\n    {text}" for name, text in BUILTIN.items()]
    lines += [
        "FOLDER\n    a transformers model with safetensors weights",
        "ADAPTER FOLDER\n    an unmerged LoRA or QLoRA adapter; its base is the same model with the adapter off",
        "FILE.gguf\n    converted once to float32 safetensors",
        "OWNER/NAME\n    a model hub id",
        "server:URL?model=NAME&tokenizer=FOLDER\n    an OpenAI-compatible server; what it gives is found out first",
    ]
    lines += [f"{name}\n    {text}" for name, text in TABULAR_MODELS.items()]
    return "\n".join(lines)


TABULAR_MODELS = {
    "builtin:tabicl-small": "tabular: TabICL's architecture, small, comes with the package (extra tabular)",
    "tabicl:PATH_OR_HUB": "tabular: a folder that save_tabular wrote, a .ckpt of tabicl, or a hub's (extra tabular)",
    "sap-rpt:PATH": "tabular: ConTextTab, sap-rpt-1-oss, a .pt (package sap_rpt_oss)",
    "tabpfn:PATH": "tabular: a TabPFN v2 classifier, a .ckpt (package tabpfn)",
}
"""For `indelible tabular`; written out here, for the adapters import torch."""


def _formats() -> str:
    from indelible.data.layouts import list_formats

    return "\n".join(f"{f.name}\n    {f.meaning}" for f in list_formats())


def _cues() -> str:
    from indelible.canaries.codes import code_format
    from indelible.canaries.encodings import CUE_NAMES, make_cue

    lines = []
    for code, spec in (("7391", "four-digit"), ("FIL-RX9Y-P6PW", "AAA-XXXX-XXXX")):
        codes = code_format(spec)
        for name in (*CUE_NAMES, "reverse-4", "shift-4", "reverse-4-shift-4"):
            cue = make_cue(name, codes)
            lines.append(f"{name}  ({spec})\n    {code} is shown as {cue.encode(code)}")
    return "\n".join([*lines, "reverse-W, shift-S and reverse-W-shift-S: W 1, 2, 4 or 8, S from 0"])


def _tasks() -> str:
    from indelible.canaries.tasks import TASK_NAMES

    return "\n".join(TASK_NAMES)


def _tables() -> str:
    from indelible.data.table_files import NAMED_TABLES

    files = "FILE\n    CSV, TSV, Parquet, ARFF, or a zip of one of them"
    return "\n".join([*(f"{name}\n    {table.meaning}" for name, table in NAMED_TABLES.items()), files])


def _probes() -> str:
    from indelible.attacks.tabular import PROBES

    return "\n".join(f"{name}\n    {probe.description}" for name, probe in PROBES.items())

"""Settings of `indelible tabular run` and `indelible tabular probe`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from indelible.checked import check
from indelible.config import Seed, Seeds, Settings
from indelible.errors import ConfigError

Profile = Literal["controlled", "resampled", "several"]
"""How a model is tuned.

controlled: one fixed context and fixed query batches (section 4.1). resampled: another context and other queries each
epoch. several: that, and every epoch draws one of the run's tables (appendix D, as far as the abstract tells).
"""

QUERIES = (50, 512)
"""Query rows of a batch in the paper (section 4.1)."""

PROBE_SHARES = (0.1, 0.4, 1.0)
"""Where in a training the model is probed unless probe epochs are given. Fixed before any result was seen; the last one
is primary: the verdict and every table but the curve over epochs rest on it alone."""

_DATA = "data"
"""The folder that settings files' own paths begin with, in whose place `--data FOLDER` comes."""


def _table(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


class TableOptions(Settings):
    """One table and how it is read.

    `source`: a path, or the name of a table that ships with a package. `name`: what the report calls it, the source's
    stem unless given. `classes`: into so many quantile classes goes a target that is a number. `max_rows`: of a larger
    table so many rows are drawn, once duplicates are gone; the same for every seed.
    """

    source: str
    name: str | None = None
    target: str | None = None
    task: Literal["auto", "classification", "regression"] = "auto"
    group: str | None = None
    id_column: str | None = None
    drop: tuple[str, ...] = ()
    types: dict[str, Literal["number", "category", "text", "date"]] | None = None
    classes: int = Field(default=10, ge=2)
    max_rows: int | None = Field(default=None, ge=10)

    @property
    def label(self) -> str:
        """What the report calls it."""
        return self.name or Path(self.source).stem


def _apart(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """At least one value, and no two that a name would not tell apart: configurations are named by six digits."""
    if values is not None and not values:
        raise ValueError("at least one")
    names: dict[str, Any] = {}
    for value in values or ():
        name = short(value) if isinstance(value, float) else str(value)
        if name in names:
            both = "" if names[name] == value else f": {names[name]!r} and {value!r} are both called {name}"
            raise ValueError(f"one of them stands there twice{both}")
        names[name] = value
    return values


def short(number: float) -> str:
    """A number in a configuration's name: 0.1, 0.001, 1e-05."""
    return f"{number:g}"


class DefenceOptions(Settings):
    """The comparison of defences: one training whose settings are fixed, and the same one with each defence.

    Every defence is trained twice, on randomised labels for what it leaks and on true ones for what it is worth; with
    the labels randomised there is nothing to be accurate about. `queries`: None takes the smallest of the run, and
    `large_queries` the largest of the run, or of those up to 512 that leave enough non-members. `patience` is in probes
    of the held-out loss, which early stopping looks at `looks` times. `epsilons`: one private training each.
    """

    learning_rate: float = Field(default=1e-2, gt=0)
    low_learning_rate: float = Field(default=1e-3, gt=0)
    queries: int | None = Field(default=None, ge=2)
    large_queries: int | None = Field(default=None, ge=2)
    patience: int = Field(default=2, ge=1)
    looks: int = Field(default=20, ge=2)
    epsilons: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = (8.0,)
    dp_clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @field_validator("epsilons")
    @classmethod
    def _once(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        return _apart(value) or ()

    @model_validator(mode="after")
    def _lower(self) -> DefenceOptions:
        if self.low_learning_rate >= self.learning_rate:
            raise ValueError(f"low_learning_rate {self.low_learning_rate:g} is not below {self.learning_rate:g}")
        return self


def _defences(value: Any) -> Any:
    if isinstance(value, bool):
        return DefenceOptions() if value else None
    return value


class Statistics(Settings):
    """What every tabular audit has in common."""

    level: float = Field(default=0.95, gt=0.5, lt=1)
    n_bootstrap: int = Field(default=1000, ge=200)
    n_permutations: int = Field(default=1000, ge=99)
    device: str = "cpu"
    with_text: bool = False
    fail_if: tuple[str, ...] = ()
    out: str | None = None


class TabularRunConfig(Statistics):
    """`indelible tabular run`: tables times seeds times query counts times learning rates, tuned, probed and judged.

    `epochs`: the paper's 500 at most; 150 unless given, so that the defaults end within minutes on two cores.
    `queries`: None means 50 and 512, or the largest count that a table holds in place of the latter. `probe_epochs`:
    None means after a tenth, four tenths and all of the epochs. `nonmembers`, `reserve`: at most so many rows;
    `least_nonmembers`: a query count that leaves fewer is dropped.
    """

    name: str | None = None
    model: str = "builtin:tabicl-small"
    tables: tuple[Annotated[TableOptions, BeforeValidator(_table)], ...] = Field(min_length=1)
    learning_rates: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = (1e-1, 1e-2, 1e-3, 1e-4)
    queries: tuple[Annotated[int, Field(ge=2)], ...] | None = None
    epochs: int = Field(default=150, ge=1, le=500)
    probe_epochs: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    seeds: Seeds = (0, 1, 2)
    profiles: tuple[Profile, ...] = ("controlled",)
    context: int = Field(default=64, ge=2)
    nonmembers: int = Field(default=1000, ge=2)
    least_nonmembers: int = Field(default=50, ge=2)
    reserve: int = Field(default=256, ge=2)
    randomise: bool = True
    exact: bool = True
    max_distance: float = Field(default=0.05, gt=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)
    defences: Annotated[DefenceOptions | None, BeforeValidator(_defences)] = None

    @field_validator("learning_rates", "queries", "profiles")
    @classmethod
    def _once(cls, value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        return _apart(value)

    @model_validator(mode="after")
    def _fits(self) -> TabularRunConfig:
        labels = [table.label for table in self.tables]
        twice = next((name for name in labels if labels.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two tables are called '{twice}': give one of them another name")
        if self.probe_epochs and max(self.probe_epochs) > self.epochs:
            raise ValueError(f"probe epoch {max(self.probe_epochs)} lies behind the last of {self.epochs} epochs")
        if "several" in self.profiles and len(self.tables) < 2:
            raise ValueError("profile 'several' trains on several tables: give more than one")
        return self

    @property
    def probed_at(self) -> tuple[int, ...]:
        """Epochs after which the model is probed, in order; the last epoch is always one of them."""
        given = self.probe_epochs or tuple(max(1, round(share * self.epochs)) for share in PROBE_SHARES)
        return tuple(sorted({*given, self.epochs}))


class TabularProbeConfig(Statistics):
    """`indelible tabular probe`: the same probes on a model tuned elsewhere. Labels are as in the files."""

    model: str
    base: str
    members: str
    nonmembers: str
    context: str
    target: str
    reserve: str | None = None
    task: Literal["auto", "classification", "regression"] = "auto"
    id_column: str | None = None
    drop: tuple[str, ...] = ()
    types: dict[str, Literal["number", "category", "text", "date"]] | None = None
    classes: int = Field(default=10, ge=2)
    max_distance: float = Field(default=0.05, gt=0, le=1)
    seed: Seed = 0


def read_run_config(
    file: str | None, flags: Mapping[str, Any], data: str | None = None
) -> tuple[TabularRunConfig, dict[str, Any]]:
    """Settings of a run from a file, with flags over it.

    Args:
        data: a folder in the place of `data/`, with which paths in the file begin.

    Returns:
        the checked settings, and what was given, for the manifest.

    Raises:
        ConfigError: unreadable file, unknown key (with the closest known one), no table, or a wrong value.
    """
    from indelible.yaml_file import read_settings

    given = {**(read_settings(file, "config file") if file is not None else {}), **flags}
    where = f"config file {file}: " if file is not None else ""
    if not set(given) <= set(TabularRunConfig.model_fields):
        check(TabularRunConfig, given, where)  # an unknown key first: it may be meant for `tables`
    if not given.get("tables"):
        raise ConfigError("no table: give --table, a file or the name of one (such as breast_cancer)")
    config = check(TabularRunConfig, given, where)
    return (config, given) if data is None else (_with_data(config, data), {**given, "--data": data})


def _with_data(config: TabularRunConfig, data: str) -> TabularRunConfig:
    """Paths that begin with `data/` begin with the folder instead."""
    if not Path(data).is_dir():
        raise ConfigError(f"--data {data}: no such folder")
    inside = {parts[1] for table in config.tables if len(parts := Path(table.source).parts) > 1 and parts[0] == _DATA}
    if (name := Path(data).name) in inside and not (Path(data) / name).exists():
        raise ConfigError(
            f"--data {data} comes in place of {_DATA}/, and sources begin with {_DATA}/{name}/: give the folder that "
            f"holds {name}/"
        )

    def moved(source: str) -> str:
        first, *rest = Path(source).parts
        return str(Path(data).joinpath(*rest)) if first == _DATA and rest else source

    tables = tuple(table.model_copy(update={"source": moved(table.source)}) for table in config.tables)
    return config.model_copy(update={"tables": tables})

"""Settings of `indelible sweep`: what a study file may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from indelible.config import DataOptions, ModelOptions, Seed, Seeds, Settings
from indelible.errors import did_you_mean
from indelible.sweep.shown import Expect, PaperTable, Show

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
"""Names of axes, models and sets of rows: they stand in dotted paths and in names of folders."""

Name = Annotated[str, Field(pattern=NAME)]


class FilePlan(DataOptions):
    """A source of rows: a path, a hub name or `named:NAME`, read as an audit reads it.

    `max_chars`: longer rows (prompt and answer together) are left out; `rows`: at most so many, drawn at random.
    """

    source: str
    max_chars: int | None = Field(default=None, ge=1)
    rows: int | None = Field(default=None, ge=1)


def _file(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


class Mix(Settings):
    """The rows of one set, a `share` of them replaced by rows of another; a larger share replaces those too."""

    of: str
    by: str
    share: float = Field(default=0.0, ge=0, le=1)


class DataPlan(Settings):
    """Where the rows come from. `files` by name; the file `split` (the first, if not given) is cut into disjoint
    `splits` of so many rows, by the seed; the other files are used whole, under their names."""

    files: dict[Name, Annotated[FilePlan, BeforeValidator(_file)]] = Field(min_length=1)
    split: str | None = None
    splits: dict[Name, Annotated[int, Field(ge=1)]] = Field(min_length=1)
    mixes: dict[Name, Mix] = Field(default_factory=dict)

    @property
    def main(self) -> str:
        """The name of the file that is split."""
        return self.split or next(iter(self.files))


class Arrange(Settings):
    """The order in which a training sees its rows: `parts` equal parts, one after the other; with a `seed`, the parts
    in a random order. The rows are then not shuffled."""

    parts: int = Field(default=10, ge=2)
    seed: Seed | None = None


class ModelPlan(Settings):
    """A model: given by `path`, or trained `from` another one on a set of `rows`; `training` as for `indelible train`.

    `epoch`: the state after so many epochs of that training; 0 is the model it started from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    path: str | None = None
    start: str | None = Field(default=None, alias="from")
    rows: str | None = None
    training: dict[str, Any] = Field(default_factory=dict)
    epoch: int | None = Field(default=None, ge=0)
    arrange: Arrange | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> ModelPlan:
        if (self.path is None) == (self.start is None):
            raise ValueError("expected either path, or from and rows")
        if self.start is not None and self.rows is None:
            raise ValueError("expected rows: the set that it is trained on")
        return self


def _model(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class Value(Settings):
    """One value of an axis: a label, and what it sets, by dotted path."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    label: str
    changes: dict[str, Any] = Field(default_factory=dict, alias="set")


class Axis(Settings):
    """What is varied: `values`, each a label with what it `set`s; or with `path` (one or several), what goes there."""

    path: tuple[str, ...] = ()
    values: tuple[Value, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "path" not in given:
            return given
        path = given["path"]
        paths = [path] if isinstance(path, str) else list(path)
        values = given.get("values")
        if not isinstance(values, list | tuple) or any(isinstance(v, Mapping) for v in values):
            return given
        return {
            **given,
            "path": paths,
            "values": [{"label": text(v), "set": dict.fromkeys(paths, v)} for v in values],
        }

    @model_validator(mode="after")
    def _distinct(self) -> Axis:
        labels = [value.label for value in self.values]
        if len(set(labels)) < len(labels):
            raise ValueError("two values have one label")
        return self


class GapOptions(Settings):
    """The optimisation gap (ICP-MIA, Sec. IV-A, Fig. 3): how much a further pass over members and non-members together
    lowers the loss of each. `n` records a side; `training` as for `indelible train`."""

    kind: Literal["gap"]
    model: str = "target"
    members: str = "train"
    nonmembers: str = "nonmembers"
    n: int = Field(default=100, ge=2)
    training: dict[str, Any] = Field(default_factory=dict)
    load: ModelOptions = ModelOptions(dtype="float32")


class FidelityOptions(Settings):
    """How well in-context probing foretells a gradient step (ICP-MIA, Sec. IV-C, Fig. 4 and 5).

    `runs` batches of `batch` rows of `records`; one step on a `batch` together or on each `record` by itself, of size
    `learning_rate`, plain (`sgd`) or AdamW's first; probes from `pool`: of the `top` most similar rows the one that
    helps most.
    """

    kind: Literal["fidelity"]
    model: str = "base"
    records: str
    pool: str
    batch: int = Field(default=16, ge=1)
    runs: int = Field(default=10, ge=1)
    top: int = Field(default=20, ge=1)
    step: Literal["batch", "record"] = "batch"
    optimiser: Literal["sgd", "adamw"] = "adamw"
    learning_rate: float = Field(default=1e-5, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    cache: bool = True
    embed: Literal["prompt", "prompt+target"] = "prompt"
    embedder: str = "builtin:all-minilm-l6-v2"
    load: ModelOptions = ModelOptions(dtype="float32")


Measure = Annotated[GapOptions | FidelityOptions, Field(discriminator="kind")]


class SweepConfig(Settings):
    """`indelible sweep FILE`: a study. Models trained, audited and measured over the product of `axes`, by seed.

    A seed draws the split, the trainings and the audits anew. `parts`: AUC of the members by when the training saw
    them, in so many parts. `paper`: what it repeats, if a paper's study it is. `work`: a folder
    that several studies have in common; equal trainings and audits in it are made once.
    """

    name: str
    paper: str | None = None
    data: DataPlan
    models: dict[Name, Annotated[ModelPlan, BeforeValidator(_model)]] = Field(min_length=1)
    audit: dict[str, Any] = Field(default_factory=dict)
    measure: Measure | None = None
    axes: dict[Name, Axis] = Field(default_factory=dict)
    seeds: Seeds = (0,)
    parts: int | None = Field(default=None, ge=2)
    show: Show = Show()
    paper_values: tuple[PaperTable, ...] = ()
    expect: tuple[Expect, ...] = ()
    keep_models: bool = False
    work: str | None = None
    level: float = Field(default=0.95, gt=0.5, lt=1)
    out: str | None = None

    @model_validator(mode="after")
    def _shown(self) -> SweepConfig:
        reserved = {"attack", "part", "block", "seed", "metric"}
        for axis in self.axes:
            if axis in reserved:
                raise ValueError(f"an axis cannot be called '{axis}'")
        keys = {*self.axes, "attack", *(("part", "block") if self.parts else ())}
        plans: list[tuple[str | None, ...]] = [(t.rows, t.columns, *t.only) for t in self.show.tables]
        plans += [(f.x, None if f.lines == "metric" else f.lines, *f.only) for f in self.show.figures]
        plans += [(p.rows, p.columns, *p.only) for p in self.paper_values]
        plans += [(e.x, None if e.by == "metric" else e.by, *e.only) for e in self.expect]
        for key in (key for plan in plans for key in plan if key is not None and key not in keys):
            raise ValueError(did_you_mean(key, sorted(keys), "axis to show"))
        for axis in (e.x for e in self.expect if e.shape == "peak" and e.x in self.axes):
            words = [value.label for value in self.axes[axis].values if not _is_number(value.label)]
            if words:
                raise ValueError(f"a peak over '{axis}' needs labels that are numbers, not '{words[0]}'")
        return self


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def text(value: Any) -> str:
    """A value as a label."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Settings of `indelible canary design`, `audit` and `run`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from indelible.canaries.screen_config import ScreenOptions
from indelible.config import ModelOptions, Seed, Seeds, Settings

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Names of arms: they become names of folders."""

DEFAULT_ROWS = 640
"""Of a training file of a task of ours."""

PROBES = ("redacted", "as-trained", "substituted", "unseen", "plain")
SCREEN_PROBES = ("redacted", "as-trained", "visible", "substituted", "absent", "unseen", "plain")
"""Of canaries on screens."""


class TaskOptions(Settings):
    """Which task the canaries hide in.

    `name`: email, support, banking77, tatqa, file, screens. `path`: the folder of banking77 or tatqa, the user's own
    file, or the folder of the user's own screens.
    `request` and `answer` (task `file`): what a canary adds to a row of the user; `{cue}` and `{code}` are where cue
    and code go, `{name}` a fictitious customer, `{prompt}` and `{answer}` the row's own text.
    """

    name: str = "support"
    path: str | None = None
    request: str = "{prompt}\n\nCustomer: {name}. Request reference: {cue}"
    answer: str = "{answer}\nCustomer: {name}. Request reference: {code}"
    format: str = "auto"
    columns: dict[str, str] | None = None
    screens: ScreenOptions | None = None

    @model_validator(mode="after")
    def _no_screens_in_text(self) -> TaskOptions:
        if self.screens is not None and self.name != "screens":
            raise ValueError(f"screens are settings of the task screens, and this is {self.name}")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Digests of text designs stay what they were before there were screens.
        return _without(handler(self), "screens")


def _without(dumped: dict[str, Any], name: str) -> dict[str, Any]:
    """Settings without one that is not set."""
    return {key: value for key, value in dumped.items() if key != name or value is not None}


class Window(Settings):
    """A stretch of training, as shares of its rows."""

    start: float = Field(ge=0, le=1)
    stop: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> Window:
        if self.start >= self.stop:
            raise ValueError(f"start {self.start} is not before stop {self.stop}")
        return self


class FinalWindow(Settings):
    """Last appearances in `width` consecutive updates that end at update `end`; first ones `gap` updates before.

    Numbers of updates are meant for a training of `of` updates and are scaled to the one at hand (section V-B: ends
    157, 227 and 297, gaps 16, 63 and 125, width 8, of 313).
    """

    end: float = Field(gt=0)
    gap: float = Field(ge=0)
    width: float = Field(default=8, gt=0)
    of: float = Field(default=313, gt=0)


PlacementName = Literal["uniform", "early", "middle", "late"]
Placement = PlacementName | Window | FinalWindow


def _many(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


class Cohort(Settings):
    """Canaries put beside the focal ones.

    Over several doses its canaries are dealt evenly.
    `one_shot`: as many distinct canaries as there would be appearances, each once, in the same places.
    """

    canaries: int = Field(ge=1)
    dose: int | tuple[int, ...] = 4
    cue: str = "redacted"
    placement: Placement = "uniform"
    one_shot: bool = False

    @property
    def doses(self) -> tuple[int, ...]:
        """All of them."""
        return self.dose if isinstance(self.dose, tuple) else (self.dose,)

    @model_validator(mode="after")
    def _dealt(self) -> Cohort:
        if not self.doses or min(self.doses) < 1 or (self.one_shot and len(self.doses) > 1):
            raise ValueError("dose is one or several whole numbers from 1, and exactly one with one_shot")
        return self


class DesignConfig(Settings):
    """`indelible canary design`: one training file with its canaries.

    `rows`: of the training file; by default all rows of a user's own file, else 640. `heldout`: rows kept for utility,
    at most a tenth of a user's file; 0 keeps none.
    `dose` and `placement` may be lists: the focal canaries are then dealt evenly over all their combinations, and
    `rotation` r gives every canary the combination r places on. `reserve`: places set aside for a canary, the largest
    dose by default; designs of one reserve have nested places. `balance`: every symbol stands about equally often at
    every position of the codes.
    `panel`: of the task `screens`, one half of the trained screens, balanced by prefix (C-A3); both without it. There
    `code` is AAA-XXXX-XXXX by default, `controls` 10, and `instruction` and `explain` are part of the canaries' own
    instruction.
    """

    task: TaskOptions = TaskOptions()
    rows: int | None = Field(default=None, ge=1)
    copies: int = Field(default=1, ge=1)
    order: Literal["shuffled", "epochs"] = "shuffled"
    batch_size: int = Field(default=16, ge=1)
    code: str = "four-digit"
    prefixes: tuple[str, ...] | None = None
    balance: bool = True
    cue: str = "redacted"
    canaries: int = Field(default=16, ge=0)
    dose: Annotated[tuple[int, ...], BeforeValidator(_many)] = (8,)
    placement: Annotated[tuple[Placement, ...], BeforeValidator(_many)] = ("uniform",)
    reserve: int | None = Field(default=None, ge=1)
    rotation: int = Field(default=0, ge=0)
    auxiliary: Cohort | None = None
    support: Cohort | None = None
    coins: int = Field(default=0, ge=0)
    controls: int = Field(default=16, ge=0)
    displacement: Literal["in-place", "drawn"] = "in-place"
    delay: float | None = Field(default=None, ge=0)
    instruction: str | None = None
    explain: tuple[str, ...] = ()
    heldout: int = Field(default=64, ge=0)
    format: Literal["messages", "instruction", "llama-factory", "axolotl"] = "messages"
    seed: Seed = 0
    panel: Literal[0, 1] | None = None

    @model_validator(mode="before")
    @classmethod
    def _for_screens(cls, given: Any) -> Any:
        task = given.get("task") if isinstance(given, dict) else None
        name = task.get("name") if isinstance(task, dict) else getattr(task, "name", None)
        return {"code": "AAA-XXXX-XXXX", "controls": 10, **given} if name == "screens" else given

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(handler(self), "panel")

    @property
    def n_rows(self) -> int:
        """Rows of the training file, once they are settled."""
        if self.rows is None:
            raise ValueError("the number of rows is not settled yet")
        return self.rows

    @field_validator("dose")
    @classmethod
    def _doses(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 0:
            raise ValueError("doses are whole numbers from 0")
        return value

    @model_validator(mode="after")
    def _fits(self) -> DesignConfig:
        if self.reserve is not None and self.reserve < max(self.dose):
            raise ValueError(f"reserve {self.reserve} is below dose {max(self.dose)}")
        if self.coins and self.displacement != "in-place":
            raise ValueError("coins need displacement in-place: elsewhere a coin that falls moves other rows")
        if self.task.name == "screens" and self.format not in ("messages", "llama-factory"):
            raise ValueError(f"format {self.format} has no place for pictures: messages or llama-factory")
        if self.panel is not None and self.task.name != "screens":
            raise ValueError(f"panel halves the screens of the task screens, and this is {self.task.name}")
        return self


ProbeName = Literal["redacted", "as-trained", "visible", "substituted", "absent", "unseen", "plain"]


class ProbeOptions(Settings):
    """What is asked of a model.

    `controls`: how many of the design's never-inserted canaries. `base`: probe the base model too, with the same probes
    unless `base_probes` names some.
    `max_new_tokens` of a reply: 12 for short codes, 24 for long ones, unless given. `utility`: held-out rows asked.
    `decoys`: the size of the candidate bank where the code space is too large to enumerate.
    """

    probes: tuple[ProbeName, ...] = ("redacted", "as-trained", "substituted")
    base_probes: tuple[ProbeName, ...] | None = None
    controls: int | None = Field(default=None, ge=0)
    new_codes: int = Field(default=4, ge=1, le=4)
    decoys: int = Field(default=19_999, ge=99)
    max_new_tokens: int | None = Field(default=None, ge=1)
    base: bool = True
    utility: int = Field(default=64, ge=0)

    def of_task(self, name: str) -> ProbeOptions:
        """With the default probes of a task: on screens those of C-B2 and C-C2."""
        if name != "screens" or "probes" in self.model_fields_set:
            return self
        return self.model_copy(update={"probes": SCREEN_PROBES[:5]})


class CanaryAuditConfig(Settings):
    """`indelible canary audit`. `models` are checkpoints of one training, in order; `clean` one without canaries.
    `with_text`: the report may show the user's own screens."""

    models: tuple[str, ...] = Field(min_length=1)
    design: str
    base: str | None = None
    clean: str | None = None
    out: str | None = None
    probe: ProbeOptions = ProbeOptions()
    load: ModelOptions = ModelOptions()
    level: float = Field(default=0.95, gt=0.5, lt=1)
    with_text: bool = False


class CanaryTraining(Settings):
    """How `indelible canary run` trains: one pass over the file in its order.

    `save_at`: updates at which checkpoints are kept and read, beside those that a design's `delay` asks for.
    """

    learning_rate: float = Field(default=2e-4, gt=0)
    schedule: Literal["cosine", "constant"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=2048, ge=2)
    micro_batch_tokens: int = Field(default=2048, ge=1)
    lora_rank: int = Field(default=0, ge=0)
    autocast: Literal["auto", "on", "off"] = "auto"
    device: str = "auto"
    save_at: tuple[int, ...] = ()


class CanaryRunConfig(Settings):
    """`indelible canary run CONFIG`: arms times seeds of design, training and audit.

    `arms` maps a name to what it changes: keys of `design`, and under `training` or `probe` keys of those.
    `data`: path of the task's data, in place of `design.task.path`.
    `clean`: also a training without canaries, for each seed and each way of training that an arm uses.
    `learning_rates`: the peak rate is chosen among these by the held-out loss of a training without canaries, first
    seed; canaries are not looked at (section A-A).
    """

    name: str | None = None
    model: str = "builtin:smollm2-135m-instruct"
    data: str | None = None
    design: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    probe: dict[str, Any] = Field(default_factory=dict)
    arms: dict[Annotated[str, Field(pattern=NAME)], dict[str, Any]] = Field(min_length=1)
    seeds: Seeds = (0,)
    clean: bool = True
    learning_rates: tuple[float, ...] = ()
    load: ModelOptions = ModelOptions()
    keep_models: bool = False
    with_text: bool = False
    level: float = Field(default=0.95, gt=0.5, lt=1)
    out: str | None = None

"""Settings of every command: frozen, checked, written resolved into the run they made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from indelible.checked import check

DEFAULT_ATTACKS = (
    "bag-of-words",
    "loss",
    "zlib",
    "min-k",
    "min-k++",
    "recall",
    "reference-base",
    "icp-ref",
    "icp-sp",
)


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed stands there twice, and the same training twice is no replicate; keep one")
    return seeds


Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_distinct)]
"""Seeds of replicates, each once."""


class DataOptions(Settings):
    """How files become records."""

    format: str = "auto"
    columns: dict[str, str] | None = None
    group_column: str | None = None
    id_column: str | None = None
    split: str = "train"


def _bytes(value: Any) -> Any:
    """A size: bytes, or a whole number with K, M or G, such as 512M."""
    if not isinstance(value, str):
        return value
    number, unit = value.strip().upper().rstrip("IB"), {"K": 10, "M": 20, "G": 30}
    shift = unit.get(number[-1:], 0)
    digits = number[:-1] if shift else number
    if not digits.isdigit():
        raise ValueError("expected bytes, or a whole number with K, M or G, such as 512M")
    return int(digits) << shift


class ModelOptions(Settings):
    """How models are loaded and rendered."""

    device: str = "auto"
    dtype: str = "auto"
    batch_tokens: int | None = Field(default=None, ge=1)
    kv_memory: Annotated[int, BeforeValidator(_bytes)] = Field(default=1 << 30, ge=0)
    template: str | None = None
    system: str | None = None
    quantise: Literal["none", "4bit", "8bit"] = "none"
    trust_remote_code: bool = False


class AuditConfig(Settings):
    """`indelible audit`."""

    model: str
    members: str
    nonmembers: str
    base: str | None = None
    reference: str | None = None
    generator: str | None = None
    pool: str | None = None
    out: str | None = None
    attacks: tuple[str, ...] = DEFAULT_ATTACKS
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    compat: Literal["icp-mia"] | None = None
    data: DataOptions = DataOptions()
    load: ModelOptions = ModelOptions()
    max_records: int | None = Field(default=None, ge=2)
    seed: Seed = 0
    embedder: str = "builtin:all-minilm-l6-v2"
    base_control: bool = True
    control_records: int | None = Field(default=None, ge=10)
    drift_records: int = Field(default=8, ge=0)
    level: float = Field(default=0.95, gt=0.5, lt=1)
    n_bootstrap: int = Field(default=2000, ge=200)
    cache: bool = True
    with_text: bool = False
    auditor: str | None = None
    release: str | None = None
    fail_if: tuple[str, ...] = ()

    @field_validator("attacks")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("at least one attack")
        return value


class ScoreConfig(Settings):
    """`indelible score`."""

    file: str
    out: str | None = None
    seed: Seed = 0
    level: float = Field(default=0.95, gt=0.5, lt=1)
    n_bootstrap: int = Field(default=2000, ge=200)
    fail_if: tuple[str, ...] = ()


class TrainConfig(Settings):
    """`indelible train`."""

    model: str
    train: str
    out: str
    epochs: int = Field(default=2, ge=1)
    batch_size: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=1e-4, gt=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    warmup_steps: int | None = Field(default=None, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=2048, ge=2)
    micro_batch_tokens: int = Field(default=2048, ge=1)
    shuffle: bool = True
    seed: Seed = 0
    save_at: tuple[int, ...] = ()
    lora_rank: int = Field(default=0, ge=0)
    lora_alpha: int | None = Field(default=None, ge=1)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    quantise: Literal["none", "4bit", "8bit"] = "none"
    dp_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    dp_delta: float | None = Field(default=None, gt=0, lt=1)
    dp_clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    autocast: Literal["auto", "on", "off"] = "auto"
    device: str = "auto"
    template: str | None = None
    system: str | None = None
    trust_remote_code: bool = False
    data: DataOptions = DataOptions()


Config = TypeVar("Config", bound=Settings)


def resolve(kind: type[Config], flags: Mapping[str, Any], file: str | None = None) -> tuple[Config, dict[str, Any]]:
    """Settings from a YAML file, overridden by the flags that were given.

    Returns:
        the checked settings, and what was given, as written into the manifest.

    Raises:
        ConfigError: unreadable file, unknown key (with the closest known one), or a value out of range.
    """
    given: dict[str, Any] = {}
    if file is not None:
        from indelible.yaml_file import read_settings

        given = read_settings(file, "config file")
    for key, value in flags.items():
        if isinstance(value, dict) and isinstance(given.get(key), dict):
            given[key] = {**given[key], **value}
        else:
            given[key] = value
    return check(kind, given, f"{file} and flags: " if file is not None else ""), given

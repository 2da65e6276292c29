"""Settings of everything that asks models: environment, then `.env`, then `chain.toml`, then these.

    [duel]                                  # chain.toml
    model = "moonshotai/Kimi-K2.6-TEE"
    [prices."moonshotai/Kimi-K2.6-TEE"]     # USD per million tokens
    input = 0.95
    output = 4.0
    cached = 0.16

The same as a variable: `CHAIN_DUEL__MODEL=...`. Keys of providers are variables only, never in
`chain.toml`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.chat import Limits
from pimono_sdpo.llm.money import Price

CONFIG = Path("chain.toml")
DOTENV = Path(".env")
PREFIX = "CHAIN_"
NESTED = "__"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A table of `chain.toml`; a key it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Asking(Section):
    """How an endpoint is asked; times in seconds."""

    provider: str = "hf"
    concurrency: Count = 16
    timeout: Positive = 180.0
    attempts: Count = 6
    wait_initial: Positive = 1.0
    wait_max: Positive = 60.0

    def limits(self) -> Limits:
        """The same for `Chat`."""
        return Limits(
            concurrency=self.concurrency,
            timeout=self.timeout,
            attempts=self.attempts,
            wait_initial=self.wait_initial,
            wait_max=self.wait_max,
        )


class Rollout(Asking):
    """Who acts in rollouts and evaluations."""

    model: Name | None = None
    temperature: Usd = 0.7
    max_tokens: Count = 2048


class Duel(Asking):
    """Who answers as king and as challenger, and what about."""

    provider: str = "chutes"
    model: Name = "moonshotai/Kimi-K2.6-TEE"
    # Another model than the king's, if any.
    challenger: Name | None = None
    temperature: Usd = 0.7
    max_tokens: Count = 4096
    turns: Count = 2000
    seed: int = 42
    opponent: Literal["king", "reference"] = "king"


class Judge(Asking):
    """Who judges, and what they may see beside the conversation."""

    provider: str = "chutes"
    models: Annotated[tuple[Name, ...], Field(min_length=1)] = (
        "deepseek-ai/DeepSeek-V3.2-TEE",
        "Qwen/Qwen3-235B-A22B-Thinking-2507",
        "moonshotai/Kimi-K2.6-TEE",
    )
    timeout: Positive = 300.0
    max_tokens: Count = 4096
    context: Literal["none", "reference", "pr"] = "pr"
    # `logprobs`: probabilities from `transformers serve`, whose URL is the provider; no text.
    backend: Literal["chat", "logprobs"] = "chat"


class Gate(Section):
    """What must hold for a challenger to be accepted; see `pimono_sdpo.duel.gate.Rules`."""

    win_margin: Annotated[float, Field(ge=0, le=50)] = 5.0
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    min_parsed: Annotated[float, Field(ge=0, le=1)] = 0.9
    min_clusters: Count = 30
    min_judges: Count = 2
    both_orders: bool = True


class ModelPrice(Section):
    """USD per million tokens."""

    input: Usd
    output: Usd
    cached: Usd | None = None


class Settings(BaseSettings):
    """All sections."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=NESTED,
        extra="ignore",  # other programs' variables in `.env`
        frozen=True,
    )
    rollout: Rollout = Rollout()
    duel: Duel = Duel()
    judge: Judge = Judge()
    gate: Gate = Gate()
    prices: dict[str, ModelPrice] = {}

    def price_list(self) -> dict[str, Price]:
        """Prices by model, for `Chat` and `Budget`."""
        return {name: Price(p.input, p.output, p.cached) for name, p in self.prices.items()}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given in code, the environment, `.env`, and `chain.toml`, in this order."""
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, dotenv_settings, toml


def load(config: Path | None = None, **given: Mapping[str, Any]) -> Settings:
    """Read the settings; `given` are sections with the keys of the command line, without None.

    `chain.toml` and `.env` of the working folder may be missing, a `config` that is named may not.
    Raises InferenceError, in one sentence, for what is unknown or has a wrong value.
    """
    path = config or CONFIG
    if config is not None and not config.is_file():
        raise InferenceError(f"`{config}` does not exist; give a TOML file with the settings.")
    sections = set(Settings.model_fields)
    for name in [*_tables(path), *_sections_of(environment())]:
        if name not in sections:
            raise InferenceError(
                f"`{name}` is no section of the settings; there are {', '.join(sorted(sections))}."
            )

    class Loaded(Settings):
        model_config = SettingsConfigDict(toml_file=path, env_file=DOTENV)

    told = {name: {k: v for k, v in keys.items() if v is not None} for name, keys in given.items()}
    try:
        return Loaded(**told)  # type: ignore[arg-type]
    except ValidationError as error:
        raise InferenceError(_sentence(error)) from error
    except SettingsError as error:
        raise InferenceError(f"The settings cannot be read: {error}; mend the variable.") from error


def environment() -> dict[str, str]:
    """The variables of `.env`, and over them those of the process."""
    try:
        named = dotenv_values(DOTENV) if DOTENV.is_file() else {}
    except (OSError, ValueError) as error:
        raise InferenceError(f"`{DOTENV}` cannot be read ({error}); mend or remove it.") from error
    return {name: value for name, value in named.items() if value} | dict(os.environ)


def _tables(path: Path) -> list[str]:
    try:
        return list(tomllib.loads(path.read_text())) if path.is_file() else []
    except (OSError, ValueError) as error:
        raise InferenceError(f"`{path}` cannot be read as TOML ({error}); mend it.") from error


def _sections_of(variables: Mapping[str, str]) -> list[str]:
    """The sections that variables such as CHAIN_DUEL__MODEL name."""
    names = [name.upper() for name in variables]
    ours = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    return [name.partition(NESTED)[0].lower() for name in ours if NESTED in name]


def _sentence(error: ValidationError) -> str:
    """The first problem; a value is not shown, as it may be a key that went astray."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"`{where}` is no key of the settings; remove it, or mend its name."
    return f"`{where}` of the settings is wrong ({first['msg']}); mend it."

"""Load the settings of commands that call models: environment, `.env`, `chain.toml`, then defaults.

    [duel]                                  # chain.toml
    model = "moonshotai/Kimi-K2.6-TEE"
    [prices."moonshotai/Kimi-K2.6-TEE"]     # USD per million tokens
    input = 0.95
    output = 4.0
    cached = 0.16

The same setting as a variable: `CHAIN_DUEL__MODEL=...`. A provider is a preset or the URL of any
OpenAI-compatible server; its key comes from a variable, never from `chain.toml`.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from dotenv import dotenv_values
from httpx2 import URL, InvalidURL
from huggingface_hub import get_token
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from pimono_sdpo.errors import InferenceError

CONFIG, DOTENV = Path("chain.toml"), Path(".env")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Alpha = Annotated[float, Field(gt=0, lt=0.5)]
Points = Annotated[float, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


def _read_list(value: Any) -> Any:
    """Decode a list from a variable, which is JSON text."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value


class Section(BaseModel):
    """A table of `chain.toml`; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Limits(Section):
    """Limits and retries for an endpoint."""

    concurrency: Count = 16
    timeout: Positive = 180.0  # seconds per attempt
    attempts: Count = 6
    give_up: Count = 20  # stop after this many failed calls in a row


class CallSection(Limits):
    """An endpoint and its limits."""

    provider: str = "hf"


class Rollout(CallSection):
    """The model of the agent in rollouts and evaluations."""

    model: Name | None = None
    temperature: Usd = 0.7
    max_tokens: Count = 2048


class Duel(CallSection):
    """The models that answer as king and challenger, and the turns they answer."""

    provider: str = "chutes"
    model: Name = "moonshotai/Kimi-K2.6-TEE"
    # None means the king's model.
    challenger: Name | None = None
    temperature: Usd = 0.7
    max_tokens: Count = 4096
    turns: Count = 2000
    seed: Annotated[int, Field(ge=0)] = 42
    opponent: Literal["king", "reference"] = "king"
    # Thresholds of `--rules original`; the margin is challenger minus king, in points.
    win_margin: Points = 2.0
    gate_alpha: Alpha = 0.05
    min_valid_turn_frac: Share = 0.5
    bootstrap_resamples: Count = 10_000

    def find_challenger(self) -> str:
        """Return the challenger's model."""
        return self.challenger or self.model


class Judge(CallSection):
    """The models that judge, and what they see besides the conversation."""

    provider: str = "chutes"
    models: Annotated[tuple[Name, ...], Field(min_length=1), BeforeValidator(_read_list)] = (
        "deepseek-ai/DeepSeek-V3.2-TEE",
        "Qwen/Qwen3-235B-A22B-Thinking-2507",
        "moonshotai/Kimi-K2.6-TEE",
    )
    timeout: Positive = 300.0
    max_tokens: Count = 4096
    context: Literal["none", "reference", "pr"] = "pr"


class Gate(Section):
    """The conditions for accepting a challenger; registered before the first judge is called."""

    win_margin: Points = 2.0  # challenger minus king, from 0 to 100
    alpha: Alpha = 0.05  # chance of accepting an equal challenger, over all looks
    min_parsed: Share = 0.9  # share of turns with a readable judgment
    min_clusters: Count = 30  # effective number of independent units
    max_turns: Count = 360  # turns at the last look
    # The units: `auto` uses repositories, or tasks if all turns come from one repository.
    cluster: Literal["auto", "repo", "task"] = "auto"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Price:
    """USD per million tokens; cached input costs the same as other input unless given."""

    input: Usd
    output: Usd
    cached: Usd | None = None


class Settings(Section):
    """All sections."""

    rollout: Rollout = Rollout()
    duel: Duel = Duel()
    judge: Judge = Judge()
    gate: Gate = Gate()
    prices: dict[str, Price] = {}


def load_settings(config: Path | None = None, **overrides: Mapping[str, Any]) -> Settings:
    """Load the settings; `overrides` are sections with options of the command line, None if not given."""
    path = config or CONFIG
    try:
        tables = tomllib.loads(path.read_text()) if config or path.is_file() else {}
    except (OSError, ValueError) as error:
        raise InferenceError(f"`{path}` cannot be read as TOML ({error}).") from error
    layers: list[tuple[str, Mapping[str, Any]]] = []
    for variable, text in read_environment().items():
        section, _, key = variable.lower().removeprefix("chain_").partition("__")
        if variable.lower().startswith("chain_") and key:
            layers.append((section, {key: text}))
    for section, keys in (*layers, *overrides.items()):
        # A section that is not a table is refused by the validation below.
        if isinstance(table := tables.setdefault(section, {}), dict):
            table.update({key: value for key, value in keys.items() if value is not None})
    try:
        return Settings.model_validate(tables)
    except ValidationError as error:
        # The value is left out, because it may be a misplaced API key.
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InferenceError(f"`{key}` of the settings is unknown or has a wrong value: {first['msg']}.") from error


def read_environment() -> dict[str, str]:
    """Return the variables of the process, and those of `.env` that the process does not set."""
    try:
        variables = dotenv_values(DOTENV) if DOTENV.is_file() else {}
    except (OSError, ValueError) as error:
        raise InferenceError(f"Cannot read `{DOTENV}` ({error}); correct or remove it.") from error
    return {name: value for name, value in variables.items() if value} | dict(os.environ)


# Sent if no key is needed; without it, the client would send the Hub's token to any URL.
NO_KEY = "none"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


class Preset(NamedTuple):
    """A provider: its URL, and the variables that hold its key and an alternative URL."""

    base_url: str
    key_variables: tuple[str, ...]
    url_variable: str = ""


PRESETS = {
    "hf": Preset("https://router.huggingface.co/v1", ("HF_TOKEN", "HUGGINGFACE_API_KEY")),
    "together": Preset("https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    "openai": Preset("https://api.openai.com/v1", ("OPENAI_API_KEY",), "OPENAI_BASE_URL"),
    "chutes": Preset("https://llm.chutes.ai/v1", ("CHUTES_API_KEY",), "CHUTES_BASE_URL"),
}
# The variable that holds the key for a URL given as provider.
OWN_KEY_VARIABLE = "LLM_API_KEY"


@dataclass(frozen=True)
class Endpoint:
    """A URL and a key, which is never shown."""

    name: str
    base_url: str
    key: str = Field(repr=False)


def find_endpoint(provider: str, environment: Mapping[str, str]) -> Endpoint:
    """Return URL and key of a provider from the environment; raises InferenceError if the key is missing."""
    if "://" in provider:
        key = environment.get(OWN_KEY_VARIABLE)
        try:
            url = URL(provider)
        except InvalidURL:
            url = URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise InferenceError(f"`{provider}` is not an http address; use one such as http://localhost:8000.")
        if url.userinfo or url.query:
            raise InferenceError(
                f"The address of `{url.host}` holds a user, a password or a query, which reports would publish; "
                f"leave them out and set {OWN_KEY_VARIABLE} to the key."
            )
        if key and url.scheme == "http" and url.host not in LOCAL_HOSTS:
            raise InferenceError(
                f"{OWN_KEY_VARIABLE} would be sent to `{provider}` unencrypted; use https, or unset the key."
            )
        return Endpoint(url.host, provider, key or NO_KEY)
    if provider not in PRESETS:
        known = ", ".join(PRESETS)
        raise InferenceError(f"`{provider}` is not a known provider; give one of {known}, or the URL of a server.")
    base_url, variables, url_variable = PRESETS[provider]
    key = next(filter(None, map(environment.get, variables)), None)
    if provider == "hf":
        # Stored by `hf auth login`.
        key = key or get_token()
    if key is None:
        names = " or ".join(variables)
        raise InferenceError(f"The provider `{provider}` needs a key; set {names} in the environment or in `.env`.")
    return Endpoint(provider, environment.get(url_variable) or base_url, key)

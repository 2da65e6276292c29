"""Load the settings of commands that call models: environment, `.env`, `chain.toml`, then defaults.

    [duel]                                  # chain.toml
    model = "moonshotai/Kimi-K2.6-TEE"
    [prices."moonshotai/Kimi-K2.6-TEE"]     # USD per million tokens
    input = 0.95
    output = 4.0
    cached = 0.16

The same setting as a variable: `CHAIN_DUEL__MODEL=...`. A provider is a preset or the URL of any
OpenAI-compatible server; its key comes from a variable, never from `chain.toml`.

The files may belong to a repository that nobody has checked. A provider or address from them never gets a key of the
user, only one from a `.env` in the same folder.
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
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.dataclasses import dataclass

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.text import is_this_machine

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
    # The file of the working folder that names the provider, None if the user or the default does.
    _provider_file: Path | None = PrivateAttr(None)

    def find_endpoint(self) -> "Endpoint":
        """Return URL and key of the provider."""
        return find_endpoint(self.provider, self._provider_file)


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
    # Layers of a file or, without one, of the user: the section, and its keys.
    layers: list[tuple[Path | None, str, Mapping[str, Any]]] = []
    for file, variables in ((DOTENV, read_dotenv()), (None, os.environ)):
        for variable, text in variables.items():
            section, _, key = variable.lower().removeprefix("chain_").partition("__")
            if variable.lower().startswith("chain_") and key:
                layers.append((file, section, {key: text}))
    layers += [(None, section, keys) for section, keys in overrides.items()]
    files: dict[str, Path | None] = dict.fromkeys(tables, path)
    for file, section, keys in layers:
        # A section that is not a table is refused by the validation below.
        if isinstance(table := tables.setdefault(section, {}), dict):
            given = {key: value for key, value in keys.items() if value is not None}
            table.update(given)
            if "provider" in given:
                files[section] = file
    try:
        settings = Settings.model_validate(tables)
    except ValidationError as error:
        # The value is left out, because it may be a misplaced API key.
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InferenceError(f"`{key}` of the settings is unknown or has a wrong value: {first['msg']}.") from error
    for name, section in settings:
        # A file that names the default changes nothing.
        if isinstance(section, CallSection) and section.provider != type(section).model_fields["provider"].default:
            section._provider_file = files.get(name)
    return settings


def read_dotenv() -> dict[str, str]:
    """Return the variables of `.env`.

    A reference such as `${NAME}` is not replaced: the file would get at every exported key.
    """
    try:
        variables = dotenv_values(DOTENV, interpolate=False) if DOTENV.is_file() else {}
    except (OSError, ValueError) as error:
        raise InferenceError(f"Cannot read `{DOTENV}` ({error}); correct or remove it.") from error
    return {name: value for name, value in variables.items() if value}


# Sent if no key is needed; without it, the client would send the Hub's token to any URL.
NO_KEY = "none"


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


class Address(NamedTuple):
    """The URL of a provider, and the file of the working folder that chose it, None if the user did."""

    url: str
    file: Path | None


@dataclass(frozen=True)
class Endpoint:
    """A URL and a key, which is never shown; `file` of the working folder chose the URL, None if the user did."""

    name: str
    base_url: str
    key: str = Field(repr=False)
    file: Path | None = None

    @property
    def destination(self) -> str:
        """The host, and the file that chose it: commands name both before they send texts to it."""
        return f"`{URL(self.base_url).host}`" + (f", which `{self.file}` of this folder chose" if self.file else "")


def find_address(provider: str, file: Path | None = None) -> Address:
    """Return the address of a provider, which `file` names, None for the user; raises InferenceError."""
    if "://" in provider:
        return _check_address(Address(provider, file), f" of `{file}`" if file else "")
    if provider not in PRESETS:
        known = ", ".join(PRESETS)
        raise InferenceError(f"`{provider}` is not a known provider; give one of {known}, or the URL of a server.")
    own, _, variable = PRESETS[provider]
    if exported := os.environ.get(variable):
        return _check_address(Address(exported, file), f" of {variable}")
    if (written := read_dotenv().get(variable)) and written != own:
        return _check_address(Address(written, file or DOTENV), f" of {variable} in `{DOTENV}`")
    return Address(own, file)


def _check_address(address: Address, origin: str) -> Address:
    """Return an address that may get texts and a key; `origin` says where it was set."""
    try:
        url = URL(address.url)
    except InvalidURL:
        url = URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise InferenceError(f"`{address.url}`{origin} is not an http address; use one such as http://localhost:8000.")
    if url.userinfo or url.query:
        raise InferenceError(
            f"The address `{url.host}`{origin} holds a user, a password or a query, which reports would publish; "
            "leave them out and set the variable of the key."
        )
    if url.scheme == "http" and not is_this_machine(url.host):
        raise InferenceError(
            f"Texts and keys would be sent to `{address.url}`{origin} unencrypted; use https, or forward the port to "
            "this machine and use http://localhost."
        )
    return address


def find_endpoint(provider: str, file: Path | None = None) -> Endpoint:
    """Return URL and key of a provider, which `file` names, None for the user; raises InferenceError.

    The keys of the user, exported or stored by `hf auth login`, are only sent to the provider's own address or to one
    that the user exported or typed. An address from a file only gets a key from a `.env` in the same folder.
    """
    address = find_address(provider, file)
    preset = PRESETS.get(provider)
    variables = preset.key_variables if preset else (OWN_KEY_VARIABLE,)
    written = read_dotenv()
    if address.file is None:
        keys = [os.environ.get(name) or written.get(name) for name in variables]
    else:
        beside = address.file.parent.resolve() == DOTENV.parent.resolve()
        keys = [written.get(name) for name in variables if beside]
    key = next(filter(None, keys), None)
    if key is None and address.file is None and provider == "hf":
        key = get_token()
    elif key is None and address.file is not None:
        owned = next((f"exported {name}" for name in variables if os.environ.get(name)), None)
        owned = owned or ("stored token of the Hub" if provider == "hf" and get_token() else None)
        trusted = f"export {preset.url_variable}" if preset and file is None else "type it as the provider"
        if owned is not None:
            raise InferenceError(
                f"`{address.file}` sends calls to `{address.url}`, which does not get your {owned}; remove that "
                f"setting or, if you trust the address, {trusted} or set its key in a `.env` beside that file."
            )
        if not is_this_machine(URL(address.url).host):
            raise InferenceError(
                f"`{address.file}` sends texts to `{address.url}`, for which there is no key; set its key in a `.env` "
                f"beside that file or, if you trust the address, {trusted}."
            )
    if key is None and preset:
        names = " or ".join(variables)
        raise InferenceError(f"The provider `{provider}` needs a key; set {names} in the environment or in `.env`.")
    # Only the user's choice of an address is shown as the provider.
    is_own = preset is not None and address.file is None
    return Endpoint(provider if is_own else URL(address.url).host, address.url, key or NO_KEY, address.file)

"""Find the address and key of a provider: a preset, or any OpenAI-compatible URL."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from huggingface_hub import get_token

from pimono_sdpo.errors import InferenceError

# Sent where no key is needed; without it, the client would send the Hub's token to any URL.
NO_KEY = "none"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True)
class Preset:
    """A provider: its address (None: the Hub's router chooses) and the variables with its key."""

    base_url: str | None
    key_variables: tuple[str, ...]
    url_variable: str | None = None


PRESETS = {
    "hf": Preset(None, ("HF_TOKEN", "HUGGINGFACE_API_KEY")),
    "together": Preset("https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    "openai": Preset("https://api.openai.com/v1", ("OPENAI_API_KEY",), "OPENAI_BASE_URL"),
    "chutes": Preset("https://llm.chutes.ai/v1", ("CHUTES_API_KEY",), "CHUTES_BASE_URL"),
}
# The variable with the key of a user's own URL.
OWN_KEY_VARIABLE = "LLM_API_KEY"


@dataclass(frozen=True)
class Endpoint:
    """An address and a key, which is never shown."""

    name: str
    base_url: str | None
    key: str = field(repr=False)


def find_endpoint(provider: str, environment: Mapping[str, str]) -> Endpoint:
    """Find a provider's address and key; raises InferenceError when one is missing.

    `environment` holds the variables, including those of `.env`.
    """
    if "://" in provider:
        return _find_own(provider, environment)
    preset = PRESETS.get(provider)
    if preset is None:
        raise InferenceError(
            f"`{provider}` is not a known provider; give one of {', '.join(PRESETS)}, or the URL "
            "of an OpenAI-compatible server."
        )
    key = next((environment[name] for name in preset.key_variables if environment.get(name)), None)
    if provider == "hf":
        # Stored by `hf auth login`.
        key = key or get_token()
    if key is None:
        names = " or ".join(preset.key_variables)
        raise InferenceError(
            f"The provider `{provider}` needs a key; set {names} in the environment or in `.env`."
        )
    moved = environment.get(preset.url_variable or "")
    return Endpoint(provider, moved or preset.base_url, key)


def _find_own(url: str, environment: Mapping[str, str]) -> Endpoint:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not url.startswith(("http://", "https://")) or not host:
        raise InferenceError(
            f"`{url}` is not an http address; use one such as http://localhost:8000."
        )
    key = environment.get(OWN_KEY_VARIABLE)
    if key and url.startswith("http://") and host not in LOCAL_HOSTS:
        raise InferenceError(
            f"{OWN_KEY_VARIABLE} would be sent to `{url}` unencrypted; use an https address, or "
            "unset the key."
        )
    return Endpoint(host, url, key or NO_KEY)

"""What the Hub, a token or the network refuse, in a clause with the next step."""

from collections.abc import Callable

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# Somebody else commits meanwhile.
CONFLICTS = (409, 412)
# Worth another attempt: the Hub is busy, or has to be restarted.
BUSY = (408, 429, 500, 502, 503, 504)


def passes(error: Exception) -> bool:
    """Tell whether what went wrong may be over in a moment."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (*CONFLICTS, *BUSY)
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        # What the client makes of a file that did not arrive.
        return passes(error.__cause__)
    return isinstance(error, HTTPError)


def clause(error: Exception, revision: str = "main") -> str:
    """Say what an error of the Hub's client means and what to do."""
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no token; set HF_TOKEN, or log in with `hf auth login`"
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it"
    if not isinstance(error, HfHubHTTPError):
        return f"the Hub cannot be reached ({type(error).__name__}); check the network"
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision `{revision}`; give the name of a branch"
    status = error.response.status_code
    said = " ".join((error.server_message or "").split())
    answer = f"the Hub answers {status}{f', {said}' if said else ''}"
    match status:
        case 401:
            return "the Hub does not accept the token; make a new one and set HF_TOKEN"
        case 403:
            return f"{answer}; set HF_TOKEN to a token that may write there, or mend what it names"
        case 404 if isinstance(error, RepositoryNotFoundError):
            return "no such repository is there or for this account to see; give another name"
        case 409 | 412:
            return f"others kept committing to it ({answer}); wait for them"
        case 413:
            return f"{answer}; it is too large for this account's storage, so make room"
    return f"{answer}; wait, or mend what it names"


def who_may_write(api: HfApi, namespace: str, known: Callable[[], bool]) -> str | None:
    """Say why this account can write nothing under a namespace; None when it may.

    `known` tells whether what is to be written to is there: it may be shared with the account.
    Raises what the client raises for no token, a wrong one, or no network.
    """
    account = api.whoami()
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        return "the token may only read; make one that may write and set HF_TOKEN"
    names = [account["name"], *(org["name"] for org in account.get("orgs", []))]
    if namespace.lower() not in [name.lower() for name in names] and not known():
        return (
            f"`{namespace}` is neither this account nor an organization of it; give one of "
            f"{', '.join(names)}"
        )
    return None

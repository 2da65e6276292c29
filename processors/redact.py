"""Take out secrets and the recorder's paths before anything else sees the text.

reads   cwd, source, prompt, diagnostics, corrections
writes  source, prompt, diagnostics, corrections, redactions (one kind per secret taken out)
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import Features, List, Value

from pimono_sdpo.schema import EVIDENCE
from pimono_sdpo.stage import Map, Row

SECRETS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "private_key",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        ),
        ("anthropic_key", r"\bsk-ant-[\w-]{16,}"),
        ("openai_key", r"\bsk-(?:proj-|svcacct-|or-v1-)?[A-Za-z0-9_-]{20,}"),
        ("huggingface_token", r"\bhf_[A-Za-z0-9]{20,}"),
        ("github_token", r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})"),
        ("gitlab_token", r"\bglpat-[\w-]{20,}"),
        ("aws_access_key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        ("google_api_key", r"\bAIza[\w-]{35}"),
        ("slack_token", r"\bxox[abeoprs]-[\w-]{10,}"),
        ("npm_token", r"\bnpm_[A-Za-z0-9]{30,}"),
        ("pypi_token", r"\bpypi-[\w-]{40,}"),
        ("stripe_key", r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
        ("google_oauth", r"\b(?:ya29\.|GOCSPX-|1//0)[\w-]{20,}"),
        ("sendgrid_key", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),
        ("telegram_token", r"\b\d{8,10}:AA[\w-]{30,}"),
        ("service_key", r"\b(?:gsk|xai|tvly|dop_v1|shpat|r8|fal|lin_api|sbp)[_-][A-Za-z0-9]{20,}"),
        ("azure_key", r"(?<=AccountKey=)[A-Za-z0-9+/=]{40,}"),
        ("jwt", r"\beyJ[\w-]{6,}\.eyJ[\w-]{6,}\.[\w-]{8,}"),
        ("bearer_token", r"(?i:\b(?:bearer|token|basic) )[A-Za-z0-9+/_.=-]{24,}"),
        (
            "password_argument",
            r"(?<= )--?(?:password|passwd|token|secret|api-key)[ =](?!\[REDACTED|\$)\S{8,}",
        ),
        ("url_password", r"(?<=://)(?!\[REDACTED)[^\s:/@]{1,64}:[^\s:/@]{3,128}(?=@)"),
        (
            "assigned_secret",
            r"(?i:\b[\w-]{0,40}(?:secret|passw(?:or)?d|api_?key|access_?key|auth_?token|_token))"
            r"[\"']?\s?[:=]\s?[\"']?(?!\[REDACTED|\$|<|process\.|os\.|None\b|null\b|true\b|false\b)"
            r"[A-Za-z0-9+/_.!@#%^&*~-]{12,}",
        ),
        ("email", r"\b[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,4}[A-Za-z]{2,24}\b"),
    )
)
# An e-mail shape that is no person's address: git remotes and package scopes.
_NO_PERSON = re.compile(r"^(?:git|npm|noreply|user|me|you)@|@example\.|\.(?:js|ts|json|md|py|png)$")
_HOME = re.compile(
    r"(?:/(?:Users|home)/[\w.-]+|/root|/data/data/com\.termux/files/home"
    r"|[A-Za-z]:\\{1,2}Users\\{1,2}[\w.-]+)(?=[/\\\s:'\"),\]]|$)"
)
_DASHED_HOME = re.compile(r"--?(?:Users|home)-[A-Za-z0-9._]+(?=-)")


def redact_text(text: str, cwd: str) -> tuple[str, list[str]]:
    """Return the text without secrets and machine paths, and the kinds of secrets found.

    >>> redact_text("token hf_abcdefghijklmnopqrstuvwx in /home/ann/app/a.py", "/home/ann/app")
    ('token [REDACTED:huggingface_token] in $WORKSPACE/a.py', ['huggingface_token'])
    """
    kinds: list[str] = []
    for kind, pattern in SECRETS:
        text = pattern.sub(partial(_replace, kind, kinds), text)
    if len(cwd) > 1:
        text = re.sub(rf"{re.escape(cwd)}(?![\w.-])", "$WORKSPACE", text)
    return _DASHED_HOME.sub("-HOME", _HOME.sub("$HOME", text)), kinds


def _replace(kind: str, kinds: list[str], match: re.Match[str]) -> str:
    if kind == "email" and _NO_PERSON.search(match.group(0)):
        return match.group(0)
    kinds.append(kind)
    if kind == "assigned_secret":
        name = re.match(r"[\w-]+[\"']?\s?[:=]\s?[\"']?", match.group(0))
        return f"{name.group(0) if name else ''}[REDACTED:{kind}]"
    return f"[REDACTED:{kind}]"


def redact(row: Row) -> dict[str, Any]:
    """Redact every text that can reach a training row."""
    found: list[str] = []

    def clean(text: str) -> str:
        cleaned, kinds = redact_text(text, row["cwd"])
        found.extend(kinds)
        return cleaned

    return {
        "source": clean(row["source"]),
        "prompt": clean(row["prompt"]),
        "diagnostics": _each_text(row["diagnostics"], clean),
        "corrections": _each_text(row["corrections"], clean),
        "redactions": found,
    }


def _each_text(items: list[dict[str, Any]], clean: Callable[[str], str]) -> list[dict[str, Any]]:
    return [{**item, "text": clean(item["text"])} for item in items]


STAGE = Map(
    redact,
    reads=("cwd", "source", "prompt", "diagnostics", "corrections"),
    writes=Features(
        {
            "source": EVIDENCE["source"],
            "prompt": EVIDENCE["prompt"],
            "diagnostics": EVIDENCE["diagnostics"],
            "corrections": EVIDENCE["corrections"],
            "redactions": List(Value("string")),
        }
    ),
    tallies=("redactions",),
)

"""Every planted secret is redacted, and what only looks like one stays."""

import pytest

from processors.secrets import redact_secrets
from tests.planted_secrets import CASES, HARMLESS


@pytest.mark.parametrize(("text", "secret"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_a_planted_secret_is_redacted(text: str, secret: str) -> None:
    cleaned, kinds = redact_secrets(f"before\n{text}\nafter")
    assert secret not in cleaned
    assert kinds
    assert cleaned.startswith("before")
    assert cleaned.endswith("after")
    assert redact_secrets(cleaned) == (cleaned, [])


@pytest.mark.parametrize("text", HARMLESS, ids=lambda text: text[:40])
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert redact_secrets(text) == (text, [])

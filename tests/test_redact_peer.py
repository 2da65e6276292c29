"""Redaction seen by another detector: what detect-secrets knows for certain is never left."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector

from processors.redact import redact_text
from tests.test_redact import PLANTED

# Guesses by name, entropy or shape alone; ours are measured by their false positives instead.
GUESSES = {"Secret Keyword", "Public IP (ipv4)", "Artifactory Credentials"}
TRACES = os.environ.get("PIMONO_TRACES")


def certain() -> list[Any]:
    plugins: dict[str, Any] = get_mapping_from_secret_type_to_class()
    return [
        plugin()
        for kind, plugin in sorted(plugins.items())
        if issubclass(plugin, RegexBasedDetector) and "Entropy" not in kind and kind not in GUESSES
    ]


def found_by_peer(text: str) -> set[tuple[str, str]]:
    return {
        (plugin.secret_type, secret)
        for plugin in certain()
        for line in text.splitlines()
        for secret in plugin.analyze_string(line)
    }


def test_the_peer_knows_some_of_the_planted_secrets() -> None:
    assert len({kind for secret, _ in PLANTED for kind, _ in found_by_peer(secret)}) >= 7


@pytest.mark.parametrize("secret", [secret for secret, _ in PLANTED])
def test_the_peer_finds_nothing_in_what_was_redacted(secret: str) -> None:
    assert found_by_peer(redact_text(f"see {secret} there", "")[0]) == set()


def texts(path: Path) -> Iterator[str]:
    for line in path.read_text(errors="replace").split("\n"):
        try:
            content = json.loads(line)["message"]["content"]
        except (ValueError, KeyError, TypeError):
            continue
        blocks = [content] if isinstance(content, str) else content or []
        yield from (b if isinstance(b, str) else str(b.get("text") or "") for b in blocks)


@pytest.mark.skipif(not TRACES, reason="needs PIMONO_TRACES")
def test_real_sessions_hold_nothing_the_peer_knows_and_few_false_alarms() -> None:
    kinds: Counter[str] = Counter()
    size = 0
    for path in sorted(Path(str(TRACES)).glob("pi/*.jsonl")):
        for text in texts(path):
            cleaned, found = redact_text(text, "")
            kinds.update(found)
            size += len(text)
            assert found_by_peer(cleaned) == set(), path.name
    # These sessions were redacted by their authors: what is found beside addresses is an example.
    false_alarms = kinds.total() - kinds["email"]
    assert false_alarms / (size / 1e6) < 8

"""MB of session text per CPU second that lose their secrets, beside detect-secrets; what is found, and what wrongly.

    python -m benchmarks.redaction [--megabytes 10] [--repeat 3]
    python -m benchmarks.redaction --tokens
    python -m benchmarks.redaction --hits 200 FOLDER ...

`--tokens` draws a token for each rule of the scanner kingfisher that finds one without a name beside it
(pip install kingfisher-secret-scanner), and for each format of token_formats.csv, which no rule of ours names; it
counts those that redaction finds. `--hits` prints redactions in the sessions of the folders, to be read.

The first form reads all texts of messages and tool results of the sessions under PIMONO_TRACES/pi (of the samples
without it), each text by itself, as the filter does. detect-secrets is measured twice: only its
exact patterns, line by line, as in `tests/test_redact_peer.py`, and as it scans by default. The
anonymizer of teich is a third peer when teich is installed (pip install teich).
CPU seconds are those of this process; the smallest of the repetitions is reported.
"""

import argparse
import csv
import importlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.core.scan import scan_line
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.settings import default_settings

from benchmarks.corpus import source_sessions
from benchmarks.provider_tokens import draw, parse, read_rules, split_beginning
from benchmarks.table import print_table
from pimono_sdpo.traces.parse import read_trace
from processors.redact import redact_text
from processors.secrets import redact_secrets

FORMATS = Path(__file__).with_name("token_formats.csv")
SENTENCE = "got {} from it"
# A drawn token may be one that the rule takes for a placeholder.
TRIES = 30
# Guesses by name, entropy or shape alone, as in the test of the same peer.
GUESSES = {"Secret Keyword", "Public IP (ipv4)", "Artifactory Credentials"}


def session_texts() -> Iterator[tuple[str, str]]:
    """Yield every text of a message with the folder its session ran in."""
    for lines in source_sessions():
        entries = [json.loads(line) for line in lines]
        cwd = next((str(e["cwd"]) for e in entries if e.get("type") == "session"), "")
        for entry in entries:
            content = (entry.get("message") or {}).get("content") or ""
            blocks = [{"text": content}] if isinstance(content, str) else content
            yield from ((text, cwd) for block in blocks if (text := block.get("text") or ""))


def up_to(texts: list[tuple[str, str]], size: int) -> list[tuple[str, str]]:
    """Return the first texts until they have the size; over and over when there are too few."""
    chosen: list[tuple[str, str]] = []
    held = 0
    while texts and held < size:
        for text, cwd in texts:
            chosen.append((text, cwd))
            held += len(text.encode())
            if held >= size:
                break
    return chosen


def exact_plugins() -> list[Any]:
    """Return the detectors that know a secret by its pattern."""
    plugins: dict[str, Any] = get_mapping_from_secret_type_to_class()
    return [
        plugin()
        for kind, plugin in sorted(plugins.items())
        if issubclass(plugin, RegexBasedDetector) and "Entropy" not in kind and kind not in GUESSES
    ]


def peer_exact(texts: list[tuple[str, str]]) -> int:
    """Ask every exact detector about every line."""
    plugins = exact_plugins()
    lines = (line for text, _ in texts for line in text.splitlines())
    return sum(1 for line in lines for plugin in plugins for _ in plugin.analyze_string(line))


def peer_default(texts: list[tuple[str, str]]) -> int:
    """Scan every line with all detectors and filters of the default settings."""
    with default_settings():
        lines = (line for text, _ in texts for line in text.splitlines())
        return sum(1 for line in lines for _ in scan_line(line))


def peer_teich(texts: list[tuple[str, str]]) -> int:
    """Rewrite every text as `teich` does when it anonymizes a session."""
    anonymizer = importlib.import_module("teich.anonymize").TraceAnonymizer()
    for text, _ in texts:
        anonymizer.anonymize_text(text)
    return sum(anonymizer.counts.values())


def measure(work: Callable[[list[tuple[str, str]]], int], texts: Any, repeat: int) -> list[str]:
    """Return CPU seconds, MB per CPU second and what was found."""
    size = sum(len(text.encode()) for text, _ in texts) / 1e6
    seconds, found = [], 0
    for _ in range(repeat):
        start = time.process_time()
        found = work(texts)
        seconds.append(time.process_time() - start)
    return [f"{size:.1f}", f"{min(seconds):.2f}", f"{size / min(seconds):.2f}", str(found)]


def draw_tokens() -> Iterator[tuple[str, str]]:
    """Yield the id of each rule of kingfisher whose tokens begin alike, with a token that the rule finds alone."""
    scanner = importlib.import_module("kingfisher_sdk").Scanner()
    for rule, (_, secret) in read_rules():
        chance = random.Random(rule)
        tokens = (draw(secret, chance) for _ in range(TRIES))
        alone = (one for one in tokens if any(hit.rule_id == rule for hit in scanner.scan(SENTENCE.format(one))))
        if all(len(beginning) > 1 for beginning, _ in split_beginning(secret)) and (token := next(alone, "")):
            yield rule, token


def draw_formats() -> Iterator[tuple[str, str]]:
    """Yield providers with a token as their documentation describes it."""
    with FORMATS.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            yield row["provider"], draw(parse(row["pattern"]), random.Random(row["provider"]))


def count_found(what: str, tokens: list[tuple[str, str]]) -> None:
    """Print how many tokens are redacted, and which are left."""
    left = [name for name, token in tokens if token in redact_secrets(SENTENCE.format(token))[0]]
    print(f"{what}: {len(tokens) - len(left)} of {len(tokens)} found; left: {', '.join(left)}")


def print_hits(folders: list[Path], count: int) -> None:
    """Print redactions of the distinct texts of sessions, drawn at random, each between what stands around it."""
    traces = (
        read_trace(file.read_text("utf-8", "replace")) for one in folders for file in sorted(one.rglob("*.jsonl"))
    )
    texts = {text: None for trace in traces for event in trace.events for text in (event.text, event.arguments)}
    hits: list[str] = []
    for text in texts:
        first, *pieces = re.split(r"\[REDACTED:(\w+)\]", redact_secrets(text)[0])
        end = len(first)
        for kind, piece in zip(pieces[::2], pieces[1::2], strict=True):
            start, end = end, text.find(piece, end) if piece else len(text)
            hits.append(f"{kind}: {text[max(start - 80, 0) : start]!r} >>{text[start:end]}<< {piece[:40]!r}")
            end += len(piece)
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(hits)} redactions in {size:.1f} MB; {count} of them:")
    print(*random.Random(0).sample(hits, min(count, len(hits))), sep="\n")


def main() -> None:
    """Measure ours and the peer over the same texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--hits", type=int)
    parser.add_argument("folders", nargs="*", type=Path)
    given = parser.parse_args()
    if given.tokens:
        count_found("rules of kingfisher", list(draw_tokens()))
        count_found("formats that no rule names", list(draw_formats()))
        return
    if given.hits:
        print_hits(given.folders, given.hits)
        return
    size = int(given.megabytes * 1e6)
    texts = up_to(list(session_texts()), size)
    results = [text for text, _ in texts]
    print(f"{len(texts)} texts, longest {max(map(len, results)) / 1e3:.0f} kB")
    works: list[tuple[str, Callable[[list[tuple[str, str]]], int], int]] = [
        ("redact_text: secrets and paths", _ours, size),
        ("redact_secrets", _ours_secrets, size),
        # The peer is slow: the first tenth of the same texts tells its rate.
        ("detect-secrets, exact patterns", peer_exact, size // 10),
        ("detect-secrets, as it comes", peer_default, size // 10),
    ]
    if find_spec("teich"):
        works.append(("teich, its anonymizer", peer_teich, size // 10))
    rows = [["redaction", "MB", "CPU s", "MB / CPU s", "found"]]
    for name, work, share in works:
        rows.append([name, *measure(work, up_to(texts, share), given.repeat)])
    rates = [float(row[3]) for row in rows[1:]]
    print_table(rows)
    for row, rate in zip(rows[3:], rates[2:], strict=True):
        print(f"redact_text beside {row[0]}: {rates[0] / rate:.1f} x")


def _ours(texts: list[tuple[str, str]]) -> int:
    return sum(len(redact_text(text, cwd)[1]) for text, cwd in texts)


def _ours_secrets(texts: list[tuple[str, str]]) -> int:
    return sum(len(redact_secrets(text)[1]) for text, _ in texts)


if __name__ == "__main__":
    main()

"""Clean, escape, shorten and split texts, and match paths with globs."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address

TRIMMED = "\n\n[... trimmed ...]\n\n"
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_HEADER = re.compile(r"^(?:Tool/environment diagnostic|Later user correction) \d+\b[^\n]*:\n", re.M)
_PLACEHOLDER, _PLACEHOLDER_CHARS = re.compile(r"\[REDACTED:\w{1,40}\]|\$(?:WORKSPACE|HOME|USER|HOST|TMPDIR)\b"), 60
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Control characters without tabs and line ends, those that set the direction of a text, and lone surrogates.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def escape_controls(text: str) -> str:
    """Replace characters that would control a terminal, or hide text from a reader, with escapes.

    >>> escape_controls("a\x1b[2J\u202eb")
    'a\\\\x1b[2J\\\\u202eb'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_line(text: str) -> str:
    r"""Replace line ends and tabs by escapes, too: for a line that contains the names of files.

    >>> escape_line("a\nb")
    'a\\nb'
    """
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def is_this_machine(host: str) -> bool:
    """Return whether what is sent to a host stays on this machine.

    >>> is_this_machine("localhost"), is_this_machine("::1"), is_this_machine("127.0.0.1.example.org")
    (True, True, False)
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    # Servers print 0.0.0.0 as their address.
    return address.is_loopback or address.is_unspecified


def strip_reasoning(text: str) -> str:
    """Return an answer without the reasoning that some servers leave before it; "" if the reasoning does not end.

    >>> strip_reasoning("<think>A or B?</think> A"), strip_reasoning("<think>A or")
    ('A', '')
    """
    answer = text.rpartition("</think>")[2].strip()
    return "" if answer.startswith("<think>") else answer


def shorten(text: str, limit: int) -> str:
    """Cut the middle of a text so that at most `limit` characters remain."""
    return text if len(text) <= limit else cut_middle(text, max(limit - len(TRIMMED), 0))


def shorten_around(text: str, limit: int, place: int) -> str:
    """Shorten a text to its head, its tail and the part from the line of `place` on, a third each."""
    if len(text) <= limit:
        return text
    part = max(limit - 2 * len(TRIMMED), 0) // 3
    begin = text.rfind("\n", 0, place) + 1
    if begin < part or begin + part > len(text) - part:
        return shorten(text, limit)
    middle = text[begin : _move_off_placeholder(text, begin + part)[0]]
    return _take_head(text, part) + TRIMMED + middle + TRIMMED + _take_tail(text, part)


def cut_middle(text: str, keep: int) -> str:
    """Keep `keep` characters, half from each end, with a mark in between.

    The beginning of a task says what to do, and the end of a diagnostic what failed.
    """
    tail = keep // 2
    return _take_head(text, keep - tail) + TRIMMED + _take_tail(text, tail)


def _take_head(text: str, size: int) -> str:
    return text[: _move_off_placeholder(text, size)[0]]


def _take_tail(text: str, size: int) -> str:
    return text[_move_off_placeholder(text, len(text) - size)[1] :]


def _move_off_placeholder(text: str, at: int) -> tuple[int, int]:
    """Return the begin and the end of the placeholder of a secret around a place; without one, the place twice."""
    near = _PLACEHOLDER.finditer(text, max(at - _PLACEHOLDER_CHARS, 0), at + _PLACEHOLDER_CHARS)
    return next((match.span() for match in near if match.start() < at < match.end()), (at, at))


def split_blocks(context: str) -> list[tuple[str, str]]:
    """Return the header and body of each block of a privileged context; [] if it does not begin with a header."""
    headers = [match.span() for match in _HEADER.finditer(context)]
    if not headers or headers[0][0] != 0:
        return []
    ends = [start for start, _ in headers[1:]] + [len(context)]
    return [(context[at:stop], context[stop:end].strip("\n")) for (at, stop), end in zip(headers, ends, strict=True)]


def split_shingles(text: str, words: int = 3) -> list[str]:
    """Return the overlapping groups of words in a text, ignoring case and spacing.

    In Chinese, Japanese and Korean, which have no spaces, each character is a word.

    >>> split_shingles("Fix the  Parser now")
    ['fix the parser', 'the parser now']
    """
    tokens = _WORD.findall(text.lower())
    return [" ".join(tokens[i : i + words]) for i in range(max(len(tokens) - words, 0) + 1)]


def shorten_line(text: str, limit: int) -> str:
    """Return a text on one line of at most `limit` characters."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else _take_head(line, limit - 1).rstrip() + "…"


def shorten_at_paragraphs(text: str, limit: int) -> str:
    """Shorten a text like `shorten`, but cut it between paragraphs, lines or at least words."""
    if len(text) <= limit:
        return text
    half = max(limit - len(TRIMMED), 0) // 2
    head, tail = _take_head(text, half), _take_tail(text, half)
    ends = ("\n\n", "\n", " ")
    # A cut loses at most two thirds of the text that would fit.
    stops = (at for end in ends if (at := head.rfind(end)) > half // 3)
    starts = (at for end in ends if 0 <= (at := tail.find(end)) < half - half // 3)
    return head[: next(stops, len(head))].rstrip() + TRIMMED + tail[next(starts, 0) :].lstrip()


def describe_size(count: int) -> str:
    """Format a number of bytes in kB or MB."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{-(-count // 1000)} kB"


def match_globs(path: str, globs: Sequence[str]) -> bool:
    """Return whether a glob matches a path or one of its parent folders; case is ignored.

    >>> match_globs("src/answers/a.py", ["answers"]), match_globs("src/a.py", ["/a.py", "tests/*"])
    (True, False)
    >>> match_globs("src/a.py", ["**/src"]), match_globs("my/src/a.py", ["**/src/*"])
    (True, True)
    """
    parts = path.casefold().split("/")
    paths = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for glob in globs:
        pattern = glob.casefold().removeprefix("./").rstrip("/")
        if pattern.startswith("**/"):
            names, pattern = [f"/{one}" for one in paths], pattern.removeprefix("*")
        else:
            names, pattern = paths if "/" in pattern else parts, pattern.removeprefix("/")
        if any(fnmatchcase(name, pattern) for name in names):
            return True
    return False

"""Find credentials and email addresses in text and replace them by placeholders.

Most rules are general: a telling name beside a value in any syntax, a prefix that says "key", text
that is hidden in base64. The patterns are in secrets.toml; `processors.secret_values` decides
whether a value is real.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import re2

from pimono_sdpo.prefilter import Prefilter, lazy_pattern, read_patterns, widen_pattern
from processors.secret_values import (
    TABLE,
    TOKENS,
    decode_text,
    find_check,
    find_kind,
    is_joined_words,
    is_made_up,
    is_password_name,
    is_random,
    is_stated_value,
)

# The kind of a secret and its value, "" for the rest of a key.
Found = tuple[str, str]


class Secret(NamedTuple):
    """A kind of secret and the pattern that finds it.

    `check` decides whether a match is one; a match that holds `unless` is none. The last named
    group of the match (`value`, `value2` ...) is redacted, or all of it if there is none.
    """

    kind: str
    pattern: re.Pattern[str]
    check: Callable[[re.Match[str]], bool] | None
    unless: str | None


def _read_secret(entry: dict[str, Any]) -> Secret:
    if unknown := entry.keys() - {"kind", "patterns", "start", "check", "unless"}:
        raise ValueError(f"A table of `{entry['kind']}` has the unknown key `{min(unknown)}`.")
    patterns = [_expand(pattern) for pattern in entry["patterns"]]
    pattern = "|".join(patterns)
    if entry.get("start"):
        pattern = _expand("<START>") + (f"(?:{pattern})" if patterns[1:] else pattern)
    name = entry.get("check", "")
    # That one reads what base64 encodes with all the patterns again.
    check = _hides_secret if name == "hides_secret" else find_check(name) if name else None
    return Secret(entry["kind"], lazy_pattern(pattern), check, entry.get("unless"))


def _spell_tokens() -> Iterator[str]:
    """Yield the patterns of providers' tokens; the group is what follows their beginning."""
    for rest, beginnings in TOKENS.items():
        # Four letters may stand anywhere in base64.
        spelled = (re.escape(one) if one[-1] in "-_.+=:/ " else f"(?<![+/_-]){one}" for one in beginnings)
        # The full stop of a sentence or the end of a path does not belong to the token.
        yield f"(?:{'|'.join(spelled)})({rest[:-1]},4000}}(?<![/.~]))"


# Those that are a name: no other word begins so.
_BEGINNINGS = "|".join(one for some in TOKENS.values() for one in some if re.fullmatch(r"\w*[A-Za-z]{3}\w*[_-]", one))


_WRITTEN = [*(one for entry in TABLE["secrets"] for one in entry["patterns"]), "<START>", "<NAME>"]
_expand = read_patterns(
    {
        **TABLE["parts"],
        "TOKENS": "|".join(_spell_tokens()),
        "BEGINNINGS": _BEGINNINGS,
        **{one: one for one in _WRITTEN},
    }
).__getitem__


def _hides_secret(match: re.Match[str]) -> bool:
    """Check what base64 encodes: a key, a login, or a text with a secret in it."""
    decoded = decode_text(match[0])
    login = re.fullmatch(r"(?=[\w.@+-]*[A-Za-z])[\w.@+-]{2,40}:([!-~]{4,60})", decoded)
    if login and "://" not in decoded:
        return is_stated_value(login[1], True)
    return any(kind != "email" for kind in redact_secrets(decoded)[1]) if decoded else False


SECRETS = tuple(map(_read_secret, TABLE["secrets"]))
_NAME = _expand("<NAME>")
# A line of a table in which a heading names a secret.
_HEADING = re.compile(
    rf"(?im)(?:^|[|,;\t]|[ ]{{2}})[ \t\"*`]{{0,4}}(?:[\w.-]{{1,30}}[_ -])?{_NAME}[ \t\"*`]{{0,4}}"
    r"(?:$|[|,;\t]|[ ]{2})"
)
_PATTERNS = [*(secret.pattern for secret in SECRETS), _HEADING]
_PREFILTER = Prefilter(_PATTERNS)
# The rest of a value on the next line, which holds nothing else: a terminal or an editor has broken it.
_CONTINUED = re.compile(
    r"[\"'`]?[ \t]{0,4}[+\\]?\r?\n[ \t]{0,12}[\"']?([\w+/.-]{8,}={0,2})(?=[\"'`,;]{0,2}[ \t]*(?:\n|\Z))"
)
_PERSONAL = frozenset({"email", "phone", "sender"})
# How far a match may go on where RE2 has found the shortest.
_REACH = 300
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_TAIL = re.compile(
    r"(?:(?:\A|(?<=[\s\"'n]))[ \t]*(?=[^\n\\]{0,200}[\d+/=]|[A-Za-z+/]{40})[A-Za-z0-9+/=]++"
    r"(?:\\r)?(?:\\n|\s)*+)+\Z"
)
# Soft hyphens and characters without width, also as written in HTML.
_INVISIBLE = re.compile("[\u00ad\u200b\u200c\u200d\u2060\ufeff]+")


def redact_secrets(text: str) -> tuple[str, list[str]]:
    """Return the text with `[REDACTED:kind]` for every secret, and the kinds in that order.

    Redacting the result again changes nothing.

    >>> redact_secrets("DB_PASSWORD=hunter2 and max_tokens=4096")
    ('DB_PASSWORD=[REDACTED:assigned_secret] and max_tokens=4096', ['assigned_secret'])
    """
    cleaned, found = _redact_visible(text)
    if not text.isascii() and _INVISIBLE.search(text):
        whole, more = _redact_visible(_INVISIBLE.sub("", text))
        # Elsewhere they belong to the text, as in joined pictographs.
        if whole != _INVISIBLE.sub("", cleaned):
            cleaned, found = whole, more
    return cleaned, [kind for kind, _ in found]


def find_secret_values(text: str) -> list[str]:
    """Return the secrets in a text that are known again where nothing names them."""
    return [value for kind, value in _redact_visible(text)[1] if kind != "email" and _is_distinct(value)]


def redact_known_secrets(text: str, values: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return the text without secrets that another text names, and the kind of each that was there."""
    # A line break may split a value anywhere, so either end may be the whole one.
    if not any(value[:_DISTINCT] in text or value[-_DISTINCT:] in text for value in values):
        return text, []
    text, count = _compile_values(values).subn("[REDACTED:known_secret]", text)
    return text, ["known_secret"] * count


@lru_cache(maxsize=256)
def _compile_values(values: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(values, key=lambda value: (-len(value), value))
    # A terminal may have broken the line.
    spelled = (r"(?:\r?\n)?".join(map(re.escape, value)) for value in longest_first)
    return re.compile(rf"{_expand('<START>')}(?:{'|'.join(spelled)})(?![A-Za-z0-9])")


# A shorter value may stand somewhere with another meaning; so much of one stands on one line.
_DISTINCT = 8
# A longer one is found by itself, such as the body of a key.
_LONGEST = 2000


def _is_distinct(value: str) -> bool:
    """Check that a value hardly stands anywhere with another meaning: a long number, or letters and digits."""
    if value.isdigit():
        return len(value) > 6
    is_mixed = re.search(r"[A-Za-z]", value) and re.search(r"\d", value)
    return _DISTINCT <= len(value) <= _LONGEST and bool(is_mixed) and not is_joined_words(value)


def _redact_visible(text: str) -> tuple[str, list[Found]]:
    found: list[Found] = []
    candidates = _PREFILTER.candidates(text)
    while candidates:
        number, before = candidates[0], len(found)
        text = _redact_kind(number, text, found)
        # A replacement may uncover or hide what later patterns look for.
        again = _PREFILTER.candidates(text) if len(found) > before else candidates
        candidates = [other for other in again if other > number]
    return _redact_key_tails(text, found), found


def _redact_kind(number: int, text: str, found: list[Found]) -> str:
    if number == len(SECRETS):
        return _redact_columns(text, found)
    secret = SECRETS[number]
    if secret.kind == "private_key":
        # Its end may be far away.
        return secret.pattern.sub(partial(_replace, secret, found), text)
    # A pattern may start anywhere, which is slow: it is tried only where RE2 finds it widened.
    parts: list[str] = []
    done = 0
    for start, stop in _find_widened(number, text):
        at = max(start, done)
        line_end = text.find("\n", stop)
        limit = min(len(text) if line_end < 0 else line_end, stop + _REACH)
        while (match := secret.pattern.search(text, at, limit)) and match.start() <= stop:
            before = len(found)
            parts += text[done : match.start()], _replace(secret, found, match)
            at = done = match.end()
            if len(found) > before and secret.kind not in _PERSONAL:
                at = done = _redact_broken(text, done, found)
    return "".join([*parts, text[done:]])


def _redact_broken(text: str, end: int, found: list[Found]) -> int:
    """Return where the last secret found ends, with its rest on further lines."""
    kind, value = found[-1]
    while is_random(value, 12) and (broken := _CONTINUED.match(text, end)) and is_random(broken[1], 8):
        value += broken[1]
        end = broken.end()
    found[-1] = kind, value
    return end


@cache
def _build_finder(number: int) -> Any:
    return re2.compile(widen_pattern(_PATTERNS[number]).encode())


def _find_widened(number: int, text: str) -> Iterator[tuple[int, int]]:
    """Yield where the widened pattern is found, in characters."""
    encoded = text.encode()
    seen = at = 0
    for found in _build_finder(number).finditer(encoded):
        start = at + len(encoded[seen : found.start()].decode())
        at = start + len(found[0].decode())
        seen = found.end()
        yield start, at


def _replace(secret: Secret, found: list[Found], match: re.Match[str]) -> str:
    start, end = match.span(match.lastgroup or 0)
    # What follows says that the harness has masked it already.
    is_masked = end - start < 20 and match.string.startswith(("…", "..."), end)
    is_exempt = secret.unless is not None and secret.unless in match[0]
    if is_masked or is_exempt or not (secret.check is None or secret.check(match)):
        return match[0]
    value, at = match.string[start:end], match.start()
    kind = find_kind(value) if secret.kind == "service_key" else secret.kind
    found.append((kind, value))
    return f"{match[0][: start - at]}[REDACTED:{kind}]{match[0][end - at :]}"


def _redact_key_tails(text: str, found: list[Found]) -> str:
    """Redact the end of a key whose beginning the harness has cut off."""
    if "-----END" not in text:
        return text
    parts = _KEY_END.split(text)
    found.extend([("private_key", "")] * (len(parts) - 1))
    cleaned = [_KEY_TAIL.sub("", part) + " [REDACTED:private_key]" for part in parts[:-1]]
    return "".join([*cleaned, parts[-1]])


_NAMES_SECRET = re.compile(rf"(?i)(?:[\w.-]{{1,30}}[_ -])?{_NAME}")
_RULE = re.compile(r"[\s|+:=-]+")
_SPACED_CELL = re.compile(r"\S+(?: \S+)*")
_WORDS = re.compile(r"[^\W\d]\w*(?:[ -]\w+)*")


def _redact_columns(text: str, found: list[Found]) -> str:
    """Redact the columns of tables whose heading names a secret; adds to `found`."""
    lines = text.split("\n")
    for start, _ in _find_widened(len(SECRETS), text):
        number = text.count("\n", 0, start)
        heading = lines[number]
        if len(heading) > 500:
            continue
        sign = next((sign for sign in "|\t;," if sign in heading), "")
        cells = [heading[a:b].strip(' \t"*`|') for a, b in _split_cells(heading, sign)]
        # A token has to look drawn, as a token may also be a coin or a word.
        columns = {n: is_password_name(cell) for n, cell in enumerate(cells) if _NAMES_SECRET.fullmatch(cell)}
        # Where only blanks divide the cells, `pass` in a numbered file looks like a heading.
        is_table = sign in {"|", ";", ","} or all(map(_WORDS.fullmatch, cells))
        if columns and is_table and 2 <= len(cells) <= 20:
            _redact_rows(lines, number + 1, sign, len(cells), columns, found)
    return "\n".join(lines)


def _redact_rows(
    lines: list[str], first: int, sign: str, width: int, columns: dict[int, bool], found: list[Found]
) -> None:
    """Redact the columns in the lines below a heading, as far as the table goes."""
    for number in range(first, len(lines)):
        line = lines[number]
        if line.strip() and _RULE.fullmatch(line):
            continue
        cells = _split_cells(line, sign)
        if len(cells) != width:
            return
        for column, is_password in reversed(columns.items()):
            line = _redact_cell(line, *cells[column], is_password, sign in {"|", "\t"}, found)
        lines[number] = line


def _split_cells(line: str, sign: str) -> list[tuple[int, int]]:
    """Return where the cells of a line are, between signs or wide gaps."""
    pattern = re.compile(rf"[^{re.escape(sign)}]+") if sign else _SPACED_CELL
    return [found.span() for found in pattern.finditer(line) if found[0].strip()]


def _redact_cell(line: str, start: int, end: int, is_password: bool, is_drawn: bool, found: list[Found]) -> str:
    cell = line[start:end].strip(" \t\"'`*")
    if "[REDACTED" in cell or " " in cell or is_made_up(cell):
        return line
    # Outside of drawn tables, only random values and mixed signs can be distinguished from words.
    is_mixed = is_password and re.fullmatch(r"(?=.*[a-z])(?=.*\d)(?=.*[^\w.,;:-])[!-~]{6,40}", cell)
    if not is_mixed and not is_stated_value(cell, (is_password and is_drawn) or is_random(cell)):
        return line
    begin = line.index(cell, start)
    found.append(("stated_secret", cell))
    return f"{line[:begin]}[REDACTED:stated_secret]{line[begin + len(cell) :]}"

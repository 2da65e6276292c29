"""Decide whether what a pattern found is a secret or personal, or a reference, a dummy, code or a bot."""

import base64
import binascii
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import log2
from pathlib import Path

from pimono_sdpo.prefilter import read_patterns

TABLE, _PROVIDERS = (
    tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    for name in ("secrets", "provider_tokens")
)
# How tokens of providers begin, by the pattern of what follows.
TOKENS: dict[str, list[str]] = _PROVIDERS["tokens"]

_VALUES, _NAMES = (read_patterns(TABLE[name]) for name in ("values", "names"))
# Random base64 of 24 characters has about 4.3 bits; hexadecimal never has more than 4.
MIN_BITS = 4.2
_NO_VALUE, _MADE_UP, _NOUNS = (frozenset(TABLE["values"][name].split()) for name in ("no_value", "made_up", "nouns"))
_REFERENCE, _COMMON, _TYPE, _MOSTLY_WORDS, _TECHNICAL, _NOBODY = (
    re.compile(_VALUES[name]) for name in ("reference", "common", "type", "mostly_words", "technical", "nobody")
)
_CHECKSUM, _KEY_LIKE, _ID, _OTHER_NAME = (re.compile(_NAMES[name]) for name in ("checksum", "key_like", "id", "other"))
_CONSTANT = re.compile(r"[A-Z]+(?:_[A-Z\d]+)+|[A-Z]{2,}(?:[A-Z][a-z]+)+")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LOWER_WORDS = re.compile(r"[a-z\d]{1,13}(?:[-_ ][a-z\d]{1,13})*")
_DUMMY = re.compile(
    r"x{8}|x{4}$|abc123(?:def|xyz)|\*{8}|a{10}|1234567890|abcdefghij|do[-_ ]?not[-_ ]?use|example(?:key)?$"
)
# As addresses of chains are spelled.
_BASE58 = re.compile("[1-9A-HJ-NP-Za-km-z]{32,44}")
_BLANK = re.compile(r"[xX*.\-_#0•]+")
_JOINED_WORD = re.compile(r"[A-Z]?[a-z]+(?:[A-Z][a-z]+)*\d{0,3}|[A-Z]+\d{0,3}|[a-z]?\d{1,4}")
_PASSWORD_NAME = re.compile(r"(?i)pass|pwd|secret|senha|contrase|parol|kennwort|woord|heslo|sandi|[^\x00-\x7f]")
# As people make one up, `Mango-Tree-19`; versions and names of things are mostly written small.
_WORDED_PASSWORD = re.compile(r"(?:[A-Z][a-z]+[-_]){2,}\d{2,4}")
_KEY_NAME = re.compile(
    r"(?i)(?P<telling>(?:api|access|account|private|secret|encrypt(?:ion)?|signing|master|auth"
    r"|shared|preshared|subscription|service|webhook|licen[cs]e)[_ -]?)?key$"
)
_UUID = re.compile(TABLE["parts"]["UUID"])
# Four letters that begin or go on as hardly a word does.
_UNSPOKEN = re.compile(
    r"\A(?:[^aeiouy]{3}|(?![bcfgkps]l|[bcdfgkptw]r|s[chkmnptw]|[cgkpstw]h|kn|wr|gn|ps|dw|tw)"
    r"[^aeiouy]{2})|[jqvz](?![aeiouyz])|[bcdfghklmprstvwz][jqx]"
)
_BEGINNING = re.compile(r"(?:[A-Z]{2,6}|[a-z][a-z0-9]{1,11})[-_](?:[a-z][a-z0-9]{0,11}[-_])*")
# A word with a number behind it, or a date; random letters seldom form one.
_WORD = re.compile(r"(?=.{2,15}\Z)(?:[A-Z]?[a-z]{2,}(?:[A-Z][a-z]+)*|[A-Z]{2,})?\d{0,4}|20\d{6}(?:\d{6})?")
# A word of an identifier, as in `rtl8822b_set_FwMacIdConfig_cmd`.
_NAME_PART = re.compile(r"[a-z]{2,}\d{0,4}[a-z]?|(?:[A-Z][a-z]+)+|[A-Z]+\d{0,3}")


def count_bits(value: str) -> float:
    """Return the entropy of a text, in bits per character."""
    counts = Counter(value)
    return -sum(n / len(value) * log2(n / len(value)) for n in counts.values())


def is_random(value: str, least: int = 16) -> bool:
    """Check that a value looks drawn: long, letters and digits mixed, no words joined.

    >>> is_random("b1946ac92492d2347c6235b4d2611184"), is_random("customer_profile_page_2")
    (True, False)
    """
    if len(value) < least or value.count("/") > 3 or _REFERENCE.fullmatch(value):
        return False
    digits = sum(map(str.isdigit, value))
    if not digits or digits == len(value) or is_joined_words(value):
        return False
    return count_bits(value) >= (2.8 if len(value) < 24 else 3.2)


def _changes_case(value: str) -> bool:
    """Recognise letters that were drawn: they change their case more often than joined words do."""
    changes = sum(one.islower() != after.islower() for one, after in pairwise(value))
    return len(value) >= 12 and value.isascii() and value.isalpha() and changes >= 0.37 * len(value)


def is_joined_words(value: str) -> bool:
    """Recognise names: words of letters, with numbers at the end of some."""
    parts = re.split(r"[-_./: ]", value)
    return not _changes_case(value) and all(not part or _JOINED_WORD.fullmatch(part) for part in parts)


def is_made_up(value: str) -> bool:
    """Recognise placeholders and the values of examples and tests.

    >>> is_made_up("fake_token_12345"), is_made_up("shared-secret"), is_made_up("hunter2")
    (True, True, False)
    """
    lowered = value.lower()
    if _BLANK.fullmatch(value) or lowered in _NO_VALUE or _COMMON.fullmatch(lowered):
        return True
    if _DUMMY.search(lowered):
        return True
    words = [word.lower() for word in _WORDS.findall(value)]
    rest = [w for w in words if w not in _MADE_UP and w not in _NOUNS and not w.isdigit()]
    is_plain = _LOWER_WORDS.fullmatch(lowered) is not None
    if not _MADE_UP.isdisjoint(words):
        return is_plain or sum(map(len, rest)) <= 4
    is_named = is_plain and bool(words) and words[-1] in _NOUNS
    if any(map(str.isdigit, value)):
        return is_named and len(re.findall(r"[-_ ]", value)) > 2
    return lowered == "correct" or is_named or (bool(words) and not rest)


def is_password_name(name: str) -> bool:
    """Return whether a name is that of a password or of a shared secret, which people make up."""
    return _PASSWORD_NAME.search(name) is not None


def is_secret_value(name: str, value: str, quoted: bool, tight: bool) -> bool:
    """Distinguish a literal secret assigned to a name from a reference, a type, a call or a label.

    `tight` says that nothing stands between name, sign and value.
    """
    value = value.strip()
    is_password = is_password_name(name)
    # `Demo2026!` in an environment file is a weak password rather than an example.
    is_dated = is_password and tight and name.isupper() and re.search(r"(?:19|20)\d\d(?!\d)", value) is not None
    if len(value) < 4 or _REFERENCE.fullmatch(value) or (is_made_up(value) and not is_dated):
        return False
    # A word in Chinese, Japanese or Korean says what the password is like.
    if value[0] in ",;)|&" or "\u3040" <= value[:1] <= "\ud7af" or _OTHER_NAME.search(name):
        return False
    key = _KEY_NAME.search(name)
    if key and not key["telling"]:
        return is_random(value, 20) and not (_CHECKSUM.search(name) or _UUID.fullmatch(value.lower()))
    if value.isdigit():
        return is_password and (quoted or name.isupper() or len(value) >= 6)
    if " " in value:
        # A passphrase has no capitals and no sign of a label.
        return is_password and value.isascii() and not (_MOSTLY_WORDS.fullmatch(value) and not value.islower())
    if value.lower() in name.lower():
        return False
    if tight and (name.isupper() or re.search(r"^[^.]+-|^(?!self|this)\w+\.", name)):
        return is_password or not _CONSTANT.fullmatch(value)
    is_word = re.fullmatch(r"[^\W\d_]+", value) is not None and not _changes_case(value)
    if name.lower() == "pass" and (is_word or is_joined_words(value)):
        # A result of a test.
        return False
    if is_password:
        # Labels begin with capitals; everything without quotes may be code: an identifier, a call, an attribute.
        return not (is_word and value[0].isupper()) if quoted else _is_literal(value)
    # A random value contains no words.
    if len(value) < 6 or is_word or is_joined_words(value) or _CONSTANT.fullmatch(value):
        return False
    return quoted or (_is_literal(value) and not _TECHNICAL.fullmatch(value))


def _is_literal(value: str) -> bool:
    """Distinguish a value without quotes from code: a type, an attribute, words that an operator joins."""
    if _TYPE.fullmatch(value):
        return False
    return re.search(r"\d|\w[^\w.:?=]+\w*[^\w.:?=]|\w{20}=", value) is not None or _changes_case(value)


def is_stated_value(value: str, plainly: bool) -> bool:
    """Check a value that a sentence or a table gives for a secret.

    `plainly` says that a verb or a sign leads to it; otherwise it has to look drawn.
    """
    # A word in Chinese, Japanese or Korean goes on with the sentence.
    if re.search(r"\.{3}|…|\(", value) or "\u3040" <= value[:1] <= "\ud7af":
        return False
    value = value.rstrip(".,;:!?)")
    if len(value) < 6 or _REFERENCE.fullmatch(value) or is_made_up(value):
        return False
    if _TECHNICAL.fullmatch(value) or _TYPE.fullmatch(value) or re.fullmatch(r"[A-Z\d]+(?:_[A-Z\d]+)+", value):
        return False
    if re.search(r"[=(){}<>|]", value.rstrip("=")[:-1]):
        return False
    if not plainly:
        return is_random(value) and not re.search(r":\d\d:|:.*[:/]|/.*:", value)
    is_mixed = re.search(r"[A-Za-z]", value) and re.search(r"\d", value)
    return bool(is_mixed) and not (re.search(r"[-_./]", value) and is_joined_words(value))


def find_kind(token: str) -> str:
    """Return what a provider's token is called.

    >>> find_kind("npm_" + "a1B2" * 9), find_kind("gsk_" + "a1B2" * 9)
    ('npm_token', 'service_key')
    """
    return next((kind for kind, beginning in TABLE["kinds"].items() if re.match(beginning, token)), "service_key")


def find_check(name: str) -> Callable[[re.Match[str]], bool]:
    """Return the function below that the table calls a check: it decides about a match."""
    check: Callable[[re.Match[str]], bool] = globals()[name]
    return check


def _value_of(match: re.Match[str]) -> str:
    return match[match.lastgroup or 0]


def _name_of(match: re.Match[str], end: str) -> str:
    """Return the whole identifier whose end the pattern has matched."""
    before = re.sub(r" \[[^\]]*\]$", "", match.string[max(match.start() - 40, 0) : match.start(end)])
    return re.split(r"[^\w.-]", before.rstrip("\\\"'`*]=:> \t\r\n"))[-1]


def is_assigned(match: re.Match[str]) -> bool:
    """Check a value behind a telling name and a sign."""
    name = _name_of(match, "sign")
    before = match.string[max(match.start() - 40, 0) : match.start("sign")]
    tight = before.endswith(name) and match.end("sign") == match.start("value")
    if match["sign"].startswith(("==", "!=")) and not match["quote"]:
        return False
    # The dash belongs to `${NAME:-default}`, a further name to a line of a log.
    value = match["value"].removeprefix("-")
    is_log = re.match(r"[a-z]+_[a-z]+=", value) is not None
    # Markdown quotes commands and names as well.
    is_prose = "`" in match["quote"]
    if is_log or (is_prose and re.search(r"\s", value)):
        return False
    return is_secret_value(name, re.split(r"&\w+=", value)[0], bool(match["quote"]) and not is_prose, tight)


def is_random_key(match: re.Match[str]) -> bool:
    """Check a long value behind any name that ends in `key`."""
    name, value = _name_of(match, "sign"), match["value"].removeprefix("base64:")
    # An id of a file or of a finding has about 20 characters.
    return is_random(value, 24 if name.lower() == "key" else 20) and is_secret_value(name, value, True, True)


def is_random_and_assigned(match: re.Match[str]) -> bool:
    """Distinguish a random value under any name from an identifier, a path or a checksum."""
    name, value = _name_of(match, "value"), match["value"]
    if not name or re.match(r".*/.*/.*/|/[a-z]+/", value) or sum(map(str.isdigit, value)) < 3 or value.isupper():
        return False
    # A session's id has no sign of base64, the key of one has.
    is_session_key = name.endswith("SESSION") and re.search(r"[+/=]", value) is not None
    if not is_session_key and (_CHECKSUM.search(name) or not (name.isupper() or _KEY_LIKE.search(name))):
        return False
    if value.count("_") > 2 and all(map(_NAME_PART.fullmatch, value.split("_"))):
        return False
    is_address = _BASE58.fullmatch(value) is not None and not _KEY_LIKE.search(name)
    if is_address or is_made_up(value) or is_joined_words(value) or _REFERENCE.fullmatch(value):
        return False
    return count_bits(value) >= MIN_BITS


def is_named(match: re.Match[str]) -> bool:
    """Check a value in quotes or tags beside a name that calls it a secret."""
    quoted = match.string[match.start(match.lastgroup or 0) - 1] in "\"'`>"
    return is_secret_value("password", _value_of(match), quoted, False)


def is_stated(match: re.Match[str]) -> bool:
    """Check a value that a sentence gives."""
    # `password abc123` may be code; behind the word of another language, it is the password.
    before = match.string[match.start() : match.start("value")]
    has_link = match["link"].strip("`\"'*_() \t-\u2013\u2014") != "" or before.rstrip().endswith(":")
    is_password = is_password_name(before)
    if has_link and is_password and _WORDED_PASSWORD.fullmatch(match["value"].rstrip(".,;!")):
        return True
    return is_stated_value(match["value"], is_password and (has_link or not before.isascii()))


def is_stated_password(match: re.Match[str]) -> bool:
    """Check a value that stands where only a password can."""
    return is_stated_value(_value_of(match), True)


def is_app_password(match: re.Match[str]) -> bool:
    """Rule out four short words: one group at least must be unpronounceable."""
    return any(map(_UNSPOKEN.search, _value_of(match).split()))


def is_drawn(match: re.Match[str]) -> bool:
    """Rule out words and dumps: capitals and small letters, mixed within half of the groups."""
    groups = match[0].split()
    mixed = sum(re.search(r"[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]", one) is not None for one in groups)
    return 2 * mixed >= len(groups) and not (match[0].islower() or match[0].isupper())


def is_real(match: re.Match[str]) -> bool:
    """Rule out placeholders and variables."""
    value = _value_of(match)
    if value.rstrip(".,;").isalpha() and value.islower():
        return False
    return "=" not in value[:-2] and is_secret_value("password", value, True, False)


def is_sent(match: re.Match[str]) -> bool:
    """Rule out the names of variables, words and cut values."""
    value = _value_of(match)
    is_name = re.fullmatch(r"[A-Z]+(?:_[A-Z]+)*|[a-z]{1,15}|.*\.{3}.*", value)
    return not is_name and not is_made_up(value)


def is_given(match: re.Match[str]) -> bool:
    """Rule out references and placeholders where only a secret can stand."""
    value = _value_of(match).strip("{}")
    return "${" not in match[0] and not (_REFERENCE.fullmatch(value) or is_made_up(value))


def is_key_body(match: re.Match[str]) -> bool:
    """Rule out the body of a certificate or of another public block, which a line announces."""
    return "-----BEGIN" not in match.string[max(match.start() - 100, 0) : match.start()]


def is_drawn_bytes(match: re.Match[str]) -> bool:
    """Rule out arrays of other numbers: 64 random bytes have about 57 different values."""
    numbers = [int(one) for one in re.findall(r"\d+", match[0])]
    return max(numbers) in range(128, 256) and len(set(numbers)) > 40


def is_login(match: re.Match[str]) -> bool:
    """Rule out the users and passwords that documentation and local databases have."""
    user, colon, password = _value_of(match).partition(":")
    return not colon or not (is_made_up(password) or user == password)


def is_token(match: re.Match[str]) -> bool:
    """Rule out examples, and names that begin like a token and go on in words: `expo-build-properties-38cd1e`."""
    rest = match[match.lastindex or 0]
    words = filter(_WORD.fullmatch, re.split(r"[^A-Za-z0-9]+", rest))
    return not rest.endswith("EXAMPLE") and 3 * sum(map(len, words)) < len(rest)


def is_drawn_body(match: re.Match[str]) -> bool:
    """Check what follows a short prefix: one long part of it has to look drawn."""
    if re.fullmatch(r"prod_[A-Za-z0-9]{14}", match[0]):
        # A product of Stripe.
        return False
    longest = max(re.split(r"[-_.]", _value_of(match)), key=len)
    is_mixed = re.search(r"[a-z]", longest) and re.search(r"[A-Z]", longest)
    return is_random(longest, 12 if is_mixed else 20)


def is_prefixed(match: re.Match[str]) -> bool:
    """Check something long behind a short beginning: a part of it has to be drawn, and it is not an id.

    Ids have up to 27 characters, or are numbers of 16 bytes in hexadecimal digits; checksums follow a dash.
    """
    if _UUID.search(match[0]):
        return _ID.fullmatch(re.split("[-_]", match[0])[0].rstrip("0123456789")) is None
    beginning = _BEGINNING.match(match[0])
    longest = max(re.split(r"[-_.]", match[0])[1:], key=len)
    if beginning is None or {*"-_"} <= {*beginning[0]} or "kwDO" in longest:
        return False
    first, *names = re.split("[-_]", beginning[0][:-1])
    if _ID.fullmatch(first) or (len(longest) <= 32 and any(map(_ID.fullmatch, names))):
        return False
    changes = sum(map(_differs, longest, longest[1:])) / len(longest)
    if not (longest.islower() or longest.isupper()):
        return changes > 0.38 and len(match[0]) - len(beginning[0]) >= 28 and any(map(str.isdigit, longest))
    if re.fullmatch("(?i:[0-9a-f]+)", longest):
        return (
            changes > 0.2
            and len(longest) >= (32 if len(first) < 5 else 40)
            and ("_" in beginning[0] or len(longest) == 32)
        )
    return changes > 0.2 and len(longest) >= 28


def _differs(one: str, after: str) -> bool:
    """Return whether the kinds of two characters differ: capital, small letter, digit."""
    return (one.isdigit(), one.islower()) != (after.isdigit(), after.islower())


def is_person(match: re.Match[str]) -> bool:
    """Rule out addresses of nobody, placeholders of forms, and files such as `a@2x.png`."""
    before = match.string[max(match.start() - 14, 0) : match.start()]
    # `\n@app.on` is a decorator in a string.
    if re.search(r"placeholder=\\?[\"']$", before) or (before.endswith("\\") and match[0][1] == "@"):
        return False
    return _NOBODY.search(match[0].lower().lstrip("-")) is None


def decode_text(value: str) -> str:
    """Return the text that base64 encodes; empty if it encodes something else."""
    whole = value[: len(value) // 4 * 4] if "=" not in value else value
    try:
        return base64.b64decode(whole, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""

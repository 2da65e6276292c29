"""Decide whether a value beside a telling name is a secret, or a reference, a dummy or code."""

import base64
import binascii
import re
from collections import Counter
from math import log2

# Random base64 of 24 characters has about 4.3 bits; hexadecimal never has more than 4.
MIN_BITS = 4.2

# A variable, an attribute, a name, a version, a path, an address, or a value that is masked.
_REFERENCE = re.compile(
    r"\$(?:\{?[A-Z_][A-Z0-9_]*\}?|\d|\(|[A-Z_]{2,}\b.*|[$!].*)?"
    r"|.*(?:\$\{|\$\(|#\{|\{\{|\}\}|%\(\w+\)|\.{3}|…|\*{3}|•{2}|REDACTED).*"
    r"|[<\[({|&,;)*].*|![a-z]+ .*|-[a-z]+|[A-Z]+(?:_[A-Z]+)+"
    r"|!?[A-Za-z_]\w*!?(?:\??\.[A-Za-z_]\w*!?)+"
    r"|[\^~>=<v]*\d+(?:\.(?:\d+|x))+\S{0,12}|(?:\.{1,2}|~)?/[\w.@-]+(?:/[\w.@-]*)+|\.{1,2}/.*"
    r"|[A-Za-z]:[\\/].*|(?:https?|file|op|vault|env|secret|arn|urn)://?.*|%[A-Z_]+%|\w+(?:::|->).*"
    r"|(?:required|nullable|sometimes|string|confirmed|(?:min|max):\d+)(?:\|.*)?|\d+(?::\d+)+",
    re.DOTALL,
)
_NO_VALUE = frozenset(
    """string str none null nil true false undefined optional required bool boolean int integer
    number text any bytes object secret password passwd passwort token key apikey basic bearer
    digest auto default unknown empty missing enabled disabled hashed encrypted""".split()
)
# With one of these words, a value that holds little else was never real.
_MADE_UP = frozenset(
    """example sample dummy fake mock mocked placeholder redacted masked hidden change changeme
    replace replaceme insert your todo tbd test tests testing tester invalid wrong incorrect expired
    xxx xxxx foo foobar bar baz demo lorem ipsum expected""".split()
)
_NOUNS = frozenset(
    """secret secrets password passwd passwort pass pwd token tokens key keys api apikey access
    refresh auth oauth bearer client user admin jwt session id credential credentials cookie value
    here name hash string label postgres root mysql redis mongo minio minioadmin guest""".split()
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LOWER_WORDS = re.compile(r"[a-z\d]{1,13}(?:[-_ ][a-z\d]{1,13})*")
_COMMON = re.compile(
    r"(?:my|your|the|super|some|new|old|test|root|admin|user|db)*(?:secret|password|passwd|pass|token)+\d{0,4}"
)
_TYPE = re.compile(r"(?:[A-Z][a-z]+\d{0,2}){2,}")
_BLANK = re.compile(r"[xX*.\-_#0•]+")
_MOSTLY_WORDS = re.compile(r"[A-Za-z]+(?:[-_ /'][A-Za-z]+)*[.?!:…]{0,3}")
_CHECKSUM = re.compile(
    r"integrity|sha\d*|hash|digest|checksum|etag|id$|uuid|commit|rev|fingerprint|signature|url|href"
    r"|path|file|name|src|data|image|resolved|version|cursor|session|responseId|address|public|pub"
    r"|mint|wallet|owner|contract|h1$",
    re.IGNORECASE,
)
_KEY_LIKE = re.compile(
    r"key|auth|cred|sign|salt|seed|pass|pw|secret|token|bearer|api|licen[cs]e|private|webhook|jwt"
    r"|hmac|otp|cert",
    re.IGNORECASE,
)
# Names that end in a telling word and hold something else.
_OTHER_NAME = re.compile(
    r"(?:page|continuation|sync|cursor|special|max|min|num|total|next|prev|[eb]os|pad|unk|sep|mask|cls"
    r"|stop|spl|js|design|syntax|color|confirm|forgot|reset|show|hide|invalid|missing|public|primary"
    r"|foreign|cache|sort|partition|idempotency|routing|lookup|dedupe?|hash|hot|short|object|s3|query"
    r"|state|data|group|row|map|index|composite|unique|lock|react|item|list|event|translation|message"
    r"|publishable|known|host|order|kms|registry|input|output)[_-]?(?:token|key|password|secret)s?$",
    re.IGNORECASE,
)
_TECHNICAL = re.compile(
    r"(?:sha|md|aes|rsa|hs|rs|es|ps|oauth|base|utf|http|ipv|argon|pbkdf|ed|x|p|k|s|ec|mp|h|win|py|v|rfc"
    r"|python|node|web|log)-?\d{1,5}[a-z]{0,3}|.*\.(?:[jt]sx?|py|md|json|ya?ml|go|rs|rb|sh|txt|env)"
    r"|\d+(?:[a-z]{1,2}|st|nd|rd|th|px|ms|min)|[a-z]+\(\)?|#\d+|L\d+|\S*:\d+(?::\d+)?",
    re.IGNORECASE,
)


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
    if not digits or digits == len(value) or _is_joined_words(value):
        return False
    return count_bits(value) >= (2.8 if len(value) < 24 else 3.2)


def _is_joined_words(value: str) -> bool:
    """Recognise names: words of letters, with numbers at the end of some."""
    parts = re.split(r"[-_./ ]", value)
    is_word = re.compile(r"(?:[A-Z]?[a-z]+)+\d{0,3}|[A-Z]+\d{0,3}|v?\d{1,4}")
    return all(not part or is_word.fullmatch(part) for part in parts) and (
        len(parts) > 1 or len(value) < 20
    )


def is_made_up(value: str) -> bool:
    """Recognise placeholders and the values of examples and tests.

    >>> is_made_up("fake_token_12345"), is_made_up("shared-secret"), is_made_up("hunter2")
    (True, True, False)
    """
    lowered = value.lower()
    if _BLANK.fullmatch(value) or lowered in _NO_VALUE or _COMMON.fullmatch(lowered):
        return True
    words = [word.lower() for word in _WORDS.findall(value)]
    rest = [w for w in words if w not in _MADE_UP and w not in _NOUNS and not w.isdigit()]
    if any(word in _MADE_UP for word in words):
        return _LOWER_WORDS.fullmatch(lowered) is not None or sum(map(len, rest)) <= 4
    is_named = _LOWER_WORDS.fullmatch(lowered) is not None and bool(words) and words[-1] in _NOUNS
    if any(map(str.isdigit, value)):
        return is_named and len(re.findall(r"[-_ ]", value)) > 2
    return lowered == "correct" or is_named or (bool(words) and not rest)


def is_secret_value(name: str, value: str, quoted: bool, tight: bool) -> bool:
    """Distinguish a literal secret assigned to a name from a reference, a type, a call or a label.

    `tight` says that nothing stands between name, sign and value.
    """
    value = value.strip()
    if len(value) < 4 or _REFERENCE.fullmatch(value) or is_made_up(value):
        return False
    if value[0] in ",;)|&" or _OTHER_NAME.search(name):
        return False
    is_password = re.search(r"pass|pwd|secret|senha|contrase|[^\x00-\x7f]", name, re.I) is not None
    if re.search(r"key$", name, re.IGNORECASE) and not _is_named_key(name):
        return is_random(value, 20) and not _CHECKSUM.search(name)
    if value.isdigit():
        return is_password and (quoted or name.isupper())
    if " " in value:
        # A passphrase has no capitals and no sign of a label.
        return is_password and not (_MOSTLY_WORDS.fullmatch(value) and not value.islower())
    if value.lower() in name.lower():
        return False
    if quoted:
        is_word = value.isalpha() and value.islower() and len(value) < 20
        return is_password or (len(value) >= 6 and not is_word)
    if _TYPE.fullmatch(value):
        return False
    if (tight and name.isupper()) or (tight and re.search(r"^[^.]+-|^(?!self|this)\w+\.", name)):
        return True
    # Everything else may be code: an identifier, a call, an attribute.
    return re.search(r"\d|[^\w.]", value) is not None


def _is_named_key(name: str) -> bool:
    return (
        re.search(
            r"(?:api|access|account|private|secret|encrypt(?:ion)?|signing|master|auth|shared"
            r"|preshared|subscription|storage|service|webhook)[_ -]?key$",
            name,
            re.IGNORECASE,
        )
        is not None
    )


def is_stated_value(value: str, plainly: bool) -> bool:
    """Check a value that a sentence or a table gives for a secret.

    `plainly` says that a verb or a sign leads to it; otherwise it has to look drawn.
    """
    if re.search(r"\.{3}|…", value):
        return False
    value = value.rstrip(".,;:!?)")
    if len(value) < 6 or _REFERENCE.fullmatch(value) or is_made_up(value):
        return False
    if (
        _TECHNICAL.fullmatch(value)
        or _TYPE.fullmatch(value)
        or re.search(r"[=(){}<>|]", value[:-1])
    ):
        return False
    if not plainly:
        return is_random(value) and re.search(r":\d\d:|:.*[:/]|/.*:", value) is None
    has_letter, has_digit = re.search(r"[A-Za-z]", value), re.search(r"\d", value)
    return has_letter is not None and has_digit is not None and not _is_joined_words_only(value)


def _is_joined_words_only(value: str) -> bool:
    return re.search(r"[-_./]", value) is not None and _is_joined_words(value)


def is_drawn_and_assigned(name: str, value: str) -> bool:
    """Distinguish a random value under any name from an identifier, a path or a checksum."""
    if value.count("/") > 2 or sum(map(str.isdigit, value)) < 3 or value.isupper():
        return False
    if _CHECKSUM.search(name) or not (name.isupper() or _KEY_LIKE.search(name)):
        return False
    return count_bits(value) >= MIN_BITS and not is_made_up(value)


def decode_text(value: str) -> str:
    """Return the text that base64 encodes; empty if it encodes something else."""
    whole = value[: len(value) // 4 * 4] if "=" not in value else value
    try:
        return base64.b64decode(whole, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""

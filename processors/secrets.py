"""Find credentials and email addresses in text and replace them by placeholders."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import log2
from typing import NamedTuple

from pimono_sdpo.prefilter import Prefilter

# A token may also follow an underscore, a CJK character or a written escape: `\nhf_...`,
# `\u001b[31mhf_...`, `%3Dhf_...`.
_START = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4})|(?<=\\x[0-9a-fA-F]{2})"
    r"|(?<=%[0-9a-fA-F]{2})|(?<=[\[;]\dm)|(?<=[\[;]\d\dm))"
)
_NAME = (
    r"(?:secret|passw(?:or)?d|passphrase|(?<=[_-])pass|token|credentials?"
    r"|(?:api|access|account|private|secret|encryption|signing|master|auth|shared)[_-]?key)"
)
_QUOTE = r"(?:\\{0,3}[\"'`])?"

# A variable, an attribute, a name, stars or an ellipsis instead of a value.
_REFERENCE = re.compile(
    r"\$(?:\{?[A-Z_][A-Z0-9_]*\}?|\d|\()?|.*\$\{.*|<.*|\*+|x+|(?i:your[_-].*)|[A-Z]+(?:_[A-Z]+)+|.*\.{3}|.*…"
    r"|!?[A-Za-z_]\w*!?(?:\??\.[A-Za-z_]\w*!?)+"
)

MIN_BITS = 4.2
_ASSIGNED = re.compile(
    r"([A-Za-z_][\w.-]{1,40})[\"'\\]{0,3}[ \t]{0,4}(?::=|=>|[=:])[ \t]{0,4}[\"'\\]{0,3}$"
)
_CHECKSUM = re.compile(
    r"integrity|sha\d*|hash|digest|checksum|etag|id$|uuid|commit|rev|fingerprint|signature|url|href"
    r"|path|file|name|src|data|image|resolved|version|cursor|session|responseId",
    re.IGNORECASE,
)


class Secret(NamedTuple):
    """A kind of secret and the pattern that finds it.

    `judge` decides whether a match is one. The last named group of the match (`value`, `value2`
    ...) is redacted, or all of it if there is none.
    """

    kind: str
    pattern: re.Pattern[str]
    judge: Callable[[re.Match[str]], bool] = bool


def _build_secret(kind: str, pattern: str, judge: Callable[[re.Match[str]], bool] = bool) -> Secret:
    return Secret(kind, re.compile(pattern), judge)


def _is_assigned(match: re.Match[str]) -> bool:
    """Distinguish a literal value from a reference, a type, a call or a count."""
    quote, value = match["quote"], match["value"]
    before = match.string[max(match.start() - 40, 0) : match.start("sign")]
    name = re.split(r"[^\w.-]", before.rstrip("\\\"'` \t\r\n"))[-1]
    if _REFERENCE.fullmatch(value):
        return False
    if value.lower() in {"string", "str", "none", "null", "true", "false", "undefined", "optional"}:
        return False
    is_password = re.search(r"pass|pwd|secret", name, re.IGNORECASE) is not None
    if value.isdigit():
        return is_password and (bool(quote) or name.isupper())
    if quote:
        return is_password or len(value) >= 6
    is_written_tight = before.endswith(name) and match.end("sign") == match.start("value")
    if name.isupper() or (is_written_tight and re.search(r"^[^.]+-|^(?!self|this)\w+\.", name)):
        return True
    # Everything else may be code: an identifier, a call, an attribute.
    return re.search(r"\d|[^\w.]", value) is not None


def _is_random_and_assigned(match: re.Match[str]) -> bool:
    """Distinguish a random value assigned to a name from an identifier, a path or a checksum."""
    value, start = match["value"], match.start("value")
    if value.count("/") > 2 or sum(c.isdigit() for c in value) < 3 or value.isupper():
        return False
    assigned = _ASSIGNED.search(match.string[max(start - 60, 0) : start])
    if not assigned or _CHECKSUM.search(assigned[1]):
        return False
    counts = Counter(value)
    bits = -sum(n / len(value) * log2(n / len(value)) for n in counts.values())
    # Random base64 of 24 characters has about 4.3; hexadecimal never has more than 4.
    return bits >= MIN_BITS


def _is_person(match: re.Match[str]) -> bool:
    """Rule out git remotes, no-reply addresses, reserved domains and files such as `a@2x.png`."""
    return not re.search(
        r"^(?:git|noreply|no-reply)@|[@.](?:example\.(?:com|org|net)|users\.noreply\.github\.com)$"
        r"|\.(?:example|test|invalid|local|[jt]sx?|json|png|jpe?g|svg|webp|css|lock|log|txt|ya?ml"
        r"|toml|html|vue|git)$",
        match[0].lower(),
    )


SECRETS: tuple[Secret, ...] = (
    _build_secret(
        "private_key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.)*?"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    _build_secret("anthropic_key", _START + r"sk-ant-[\w-]{16,}"),
    _build_secret("openai_key", _START + r"sk-(?:proj-|svcacct-|or-v1-)?[A-Za-z0-9_-]{20,}"),
    _build_secret("huggingface_token", _START + r"(?:api_)?hf_[A-Za-z0-9]{20,}"),
    _build_secret(
        "github_token",
        _START + r"(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})",
    ),
    _build_secret("gitlab_token", _START + r"gl(?:pat|rt)-[\w-]{20,}"),
    _build_secret("aws_access_key", _START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _build_secret("google_api_key", _START + r"AIza[\w-]{35}"),
    _build_secret("google_oauth", _START + r"(?:ya29\.|GOCSPX-|1//0)[\w-]{20,}"),
    _build_secret("slack_token", _START + r"(?:xox[abeoprs]|xapp)-[\w-]{10,}"),
    _build_secret(
        "webhook",
        r"hooks\.slack\.com/(?P<value>[\w/+-]{20,})|/api/webhooks/(?P<value2>\d+/[\w-]{20,})",
    ),
    _build_secret("npm_token", _START + r"npm_[A-Za-z0-9]{30,}"),
    _build_secret("pypi_token", _START + r"pypi-[\w-]{40,}"),
    _build_secret("stripe_key", _START + r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    _build_secret("sendgrid_key", _START + r"SG\.[\w-]{16,100}\.[\w-]{16,}"),
    _build_secret(
        "discord_token",
        _START + r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}(?![\w-])",
    ),
    _build_secret("telegram_token", _START + r"\d{8,10}:AA[\w-]{30,}"),
    _build_secret(
        "service_key",
        _START + r"(?:(?:gsk|xai|tvly|dop_v1|shp(?:at|ca|pa|ss)|r8|fal|lin_api|sbp|whsec|nvapi"
        r"|pplx|figd|glsa|sntr[yu]s|dckr_pat|ops)[_-][A-Za-z0-9+/_=-]{20,}"
        r"|ATATT3[\w=-]{20,}|ntn_[A-Za-z0-9]{20,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}"
        r"|dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9]{40,}|SK[a-f0-9]{32}(?![A-Za-z0-9])|BSA[\w-]{24,40}(?![\w-])"
        r"|dapi[a-f0-9]{32}|hv[sb]\.[\w-]{20,}|key-[a-f0-9]{32})",
    ),
    _build_secret("jwt", _START + r"eyJ[\w-]{6,1000}\.eyJ[\w-]{6,}\.[\w-]{8,}"),
    _build_secret(
        "authorization",
        r"(?i:authorization"
        + _QUOTE
        + r"\s{0,8}[:=]\s{0,8}"
        + _QUOTE
        + r"(?:basic|bearer|token|digest|apikey) |bearer (?=[^\s\"'`]{0,40}[0-9]|[A-Za-z]{24}))"
        r"(?P<value>[A-Za-z0-9+/_.=~:-]{4,})",
    ),
    _build_secret(
        "password_argument",
        r"(?<!\S)--?(?:pass|password|passwd|passphrase|token|secret|api-key|auth-token)"
        r"[ =][\"']?(?P<value>(?![-$<\[{])[^\s\"']{4,})",
    ),
    _build_secret(
        "password_argument",
        r"\bsshpass\s{1,8}-p[ ]?[\"']?(?P<value>(?!\$|\[REDACTED)[^\s\"']{3,})"
        r"|\bmysql(?:dump|admin)?\b[^\n]{0,200}?\s-p(?P<value2>(?!\$|\[REDACTED)[^\s\"'=-][^\s\"']{2,})"
        r"|\blogin\s{1,8}\S{1,80}\s{1,8}password\s{1,8}(?P<value3>(?!\[REDACTED)\S{3,})",
    ),
    _build_secret(
        "stored_login",
        r"(?:\"auth\"\s{0,8}:\s{0,8}\"|\b_auth\s{0,8}=\s{0,8}\"?)(?P<value>[A-Za-z0-9+/=]{12,})"
        r"|(?i:\b(?:set-)?cookie\\{0,2}[\"']?:\s{0,8}+[\"']?+)(?P<value2>(?!\[REDACTED)[^\n\"'\\]{8,2000})"
        r"|(?i:<(?:password|passwd|secret|token|apikey)>)(?P<value3>[^<\s\[]{4,200})(?=<)"
        r"|(?i:secret_access_key)\s{1,40}(?P<value4>[A-Za-z0-9/+]{40}={0,2})(?![A-Za-z0-9/+=])",
    ),
    _build_secret(
        "pgpass",
        r"(?m:^[\w.*-]{1,100}:(?:\d{2,5}|\*):[\w*-]{1,63}:[\w.-]{1,63}:(?P<value>(?!\[REDACTED)\S{4,})$)",
    ),
    _build_secret(
        "user_argument",
        r"\bcurl\b[^\n]{0,300}?\s(?:-u|--user)[ =]?[\"']?"
        r"(?P<value>(?!\$|\[REDACTED)[^\s\"':]{1,64}:(?!\$)[^\s\"']+)",
    ),
    _build_secret(
        "url_password",
        r"://(?P<value>(?!\[REDACTED|\$|<|\{)[^\s/@:\"'`<>]{0,64}:(?!\$|<|\{|\[REDACTED)"
        r"[^\s/\"'`<>]{1,128}|[A-Za-z0-9_-]{20,})(?=@[\w\[.-])",
    ),
    _build_secret(
        "url_parameter",
        r"[?&](?i:sig|signature|key|code|auth|access_token|token|x-amz-[a-z-]{4,24})="
        r"(?P<value>(?![$<{\[])[^\s&#\"'`<>)\]]{8,})",
    ),
    _build_secret(
        "assigned_secret",
        r"(?i:" + _NAME + r")(?:_?\d{1,2}|_base64)?(?![A-Za-z0-9])" + _QUOTE + r"[ \t]{0,24}"
        r"(?P<sign>=>|:=|[:=])(?![=:])[ \t]{0,8}(?P<quote>" + _QUOTE + r")"
        r"(?P<value>(?<=[\"'`])(?!\[REDACTED)[^\"'`\n\\]{4,256}+"
        r"|(?<![\"'`])[^\s\"'`,;<>(){}\[\]\\]{4,256}+(?![(\[]))",
        _is_assigned,
    ),
    _build_secret(
        "high_entropy",
        r"[=:>][ \t]{0,4}[\"'\\]{0,3}(?<![A-Za-z0-9+/_=.-])"
        r"(?P<value>[A-Za-z0-9+/_-]{24,128}={0,2})(?![A-Za-z0-9+/_=.-])",
        _is_random_and_assigned,
    ),
    _build_secret(
        "email",
        r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,4}[A-Za-z]{2,24}"
        r"(?![A-Za-z0-9])",
        _is_person,
    ),
)
# These patterns may start anywhere, which is slow, but never span lines, of which few match.
_BY_LINE = frozenset({"assigned_secret"})
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\ \r\n\t"


_PREFILTER = Prefilter([secret.pattern for secret in SECRETS])


def redact_secrets(text: str) -> tuple[str, list[str]]:
    """Return the text with `[REDACTED:kind]` for every secret, and the kinds in that order.

    Redacting the result again changes nothing.

    >>> redact_secrets("DB_PASSWORD=hunter2 and max_tokens=4096")
    ('DB_PASSWORD=[REDACTED:assigned_secret] and max_tokens=4096', ['assigned_secret'])
    """
    kinds: list[str] = []
    candidates = _PREFILTER.candidates(text)
    while candidates:
        number, before = candidates[0], len(kinds)
        text = _redact_kind(number, text, kinds)
        # A replacement may uncover or hide what later patterns look for.
        again = _PREFILTER.candidates(text) if len(kinds) > before else candidates
        candidates = [other for other in again if other > number]
    return _redact_key_tails(text, kinds), kinds


def _redact_kind(number: int, text: str, kinds: list[str]) -> str:
    secret = SECRETS[number]
    put = partial(_replace, secret, kinds)
    if secret.kind not in _BY_LINE:
        return secret.pattern.sub(put, text)
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if number in _PREFILTER.candidates(line):
            lines[at] = secret.pattern.sub(put, line)
    return "\n".join(lines)


def find_secret_kinds(text: str) -> list[str]:
    """Return the kinds of the secrets in a text."""
    return redact_secrets(text)[1]


def _replace(secret: Secret, kinds: list[str], match: re.Match[str]) -> str:
    if not secret.judge(match):
        return match[0]
    kinds.append(secret.kind)
    start = match.start(match.lastgroup) if match.lastgroup else match.start()
    return f"{match[0][: start - match.start()]}[REDACTED:{secret.kind}]"


def _redact_key_tails(text: str, kinds: list[str]) -> str:
    """Redact the end of a key whose beginning the harness has cut off."""
    parts = _KEY_END.split(text) if "-----END" in text else [text]
    kinds.extend(["private_key"] * (len(parts) - 1))
    cleaned = [part.rstrip(_KEY_BODY) + " [REDACTED:private_key]" for part in parts[:-1]]
    return "".join([*cleaned, parts[-1]])

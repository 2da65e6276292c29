"""Find credentials and email addresses in text and replace them by placeholders.

Most rules are general: a telling name beside a value in any syntax, a prefix that says "key", text
that is hidden in base64. `processors.secret_values` decides whether a value is real.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import re2

from pimono_sdpo.prefilter import Prefilter, widen_pattern
from processors.secret_values import (
    decode_text,
    is_drawn_and_assigned,
    is_made_up,
    is_random,
    is_secret_value,
    is_stated_value,
)

# A token may also follow an underscore, a CJK character or a written escape: `\nhf_...`,
# `\u001b[31mhf_...`, `%3Dhf_...`.
_START = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4})|(?<=\\x[0-9a-fA-F]{2})"
    r"|(?<=%[0-9a-fA-F]{2})|(?<=[\[;]\dm)|(?<=[\[;]\d\dm))"
)
# The rest of a token on further lines that hold nothing else.
_WRAPPED = (
    r"(?:\\?\r?\n[ \t]{0,12}(?=[\w+/=-]{0,200}\d)[\w+/=-]{8,}(?=[\"'`,;]{0,2}[ \t]*(?:\n|\Z)))*"
)
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NAME = (
    r"(?:secret|passw(?:or)?d|passphrase|passcode|passwort|contrase(?:ñ|n)a|senha|mot de passe"
    r"|(?<=[_-])pass|(?-i:(?<![A-Za-z])pass|(?<=[a-z])Pass)|(?<![A-Za-z$])pwd|(?-i:(?<=[a-z])Pwd)"
    r"|token|credentials?|密码|密碼|パスワード|비밀번호|пароль"
    r"|(?:api|access|account|private|secret|encryption|signing|master|auth|shared|preshared"
    r"|subscription|storage|webhook)[ _-]?key)"
)
_MORE_NAME = r"(?:_?\d{1,2}|_base64|[_-](?:value|base|prod|dev|staging|live|test|old|new))?"
_QUOTE = r"(?:\\{0,3}[\"'`])?"
# Nothing that was redacted before, no variable and no placeholder.
_NOT_YET = r"(?!\[REDACTED|\$|<|\{)"
_KEY_LINES = r"(?:(?:\\r)?(?:\\n|\r?\n)[ \t]*(?:[A-Za-z0-9+/]{20,}={0,2}|[A-Za-z0-9+/]{2,}==?))*"
_KEY_MARK = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1"
_LONG_PREFIXES = (
    r"gsk|xai|tvly(?:-dev)?|do[opr]_v1|shp(?:at|ca|pa|ss)|r8|fal|lin_(?:api|oauth)|sbp|sb_secret|whsec"
    r"|nvapi|pplx|figd|gls?[ac]|sntry[su]|dckr_[po]at|ops|fw|fc|csk|lsv2_[ps][tk]|pcsk|jina|e2b|rpa"
    r"|wandb_v1|cf(?:ut|at|k)|HRKU|fo1|fm[12][ar]?|rnd|nfp|pscale_(?:tkn|pw|oauth)|napi|dbt[cu]|pul"
    r"|rubygems|FLWSECK(?:_TEST)?|x(?:key|smtp)sib|PMAK|CFPAT|NR(?:AK|AA|JS|II|BR|RA)|hc[a-z]{1,3}k|phx"
    r"|sq[aupt]|sgp|slk|bkua|CC(?:IPAT|IPRJ)|pn[ub]|apify_api|ddp|tfp|tskey(?:-[a-z]{2,8})?|vc[apk]"
    r"|sha256~|sdk|access-(?:production|sandbox)"
    r"|sq0(?:atp|csp|idp)|github_pat|ntn|hvp|cio|bb_live|rdme|ddog|expo|aio|fio-u|ico|CLOJARS|tk-us|lip|dnkey|mob|signkey(?:-prod)?"
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


def _value_of(match: re.Match[str]) -> str:
    return match[match.lastgroup] if match.lastgroup else match[0]


def _name_of(match: re.Match[str], end: str) -> str:
    """Return the whole identifier whose end the pattern has matched."""
    before = match.string[max(match.start() - 40, 0) : match.start(end)]
    return re.split(r"[^\w.-]", before.rstrip("\\\"'`*]=:> \t\r\n"))[-1]


def _is_assigned(match: re.Match[str]) -> bool:
    name = _name_of(match, "sign")
    before = match.string[max(match.start() - 40, 0) : match.start("sign")]
    tight = before.endswith(name) and match.end("sign") == match.start("value")
    if match["sign"].startswith(("==", "!=")) and not match["quote"]:
        return False
    return is_secret_value(name, match["value"], bool(match["quote"]), tight)


def _is_random_key(match: re.Match[str]) -> bool:
    name = _name_of(match, "sign")
    value = match["value"].removeprefix("base64:")
    return is_random(value, 20) and is_secret_value(name, value, True, True)


def _is_random_and_assigned(match: re.Match[str]) -> bool:
    name = _name_of(match, "value")
    return bool(name) and is_drawn_and_assigned(name, match["value"])


def _is_named(match: re.Match[str]) -> bool:
    """Judge a value in quotes or tags beside a name that calls it a secret."""
    quoted = match.string[match.start(match.lastgroup or 0) - 1] in "\"'`>"
    return is_secret_value("password", _value_of(match), quoted, False)


def _is_stated(match: re.Match[str]) -> bool:
    return is_stated_value(match["value"], match["link"].strip("`\"'*_() \t") != "")


def _is_real(match: re.Match[str]) -> bool:
    """Rule out placeholders and variables."""
    value = _value_of(match)
    if value.rstrip(".,;").isalpha() and value.islower():
        return False
    return "=" not in value[:-2] and is_secret_value("password", value, True, False)


def _is_sent(match: re.Match[str]) -> bool:
    value = _value_of(match)
    return not is_made_up(value) and not re.fullmatch(
        r"[A-Z]+(?:_[A-Z]+)*|[a-z]{1,15}|.*\.{3}.*", value
    )


def _is_login(match: re.Match[str]) -> bool:
    """Rule out the users and passwords that documentation and local databases have."""
    user, colon, password = _value_of(match).partition(":")
    return not colon or not (is_made_up(password) or user == password)


def _is_random_token(match: re.Match[str]) -> bool:
    """Rule out names that begin like a token and go on in words."""
    words = re.compile(r"[A-Za-z]+(?:[-_./](?:[a-z]+|[A-Z][a-z]+|[A-Z]+)\d{0,3})+")
    # A session's id in a path is no secret, nor are the words around it.
    value = re.sub(_UUID, "", match[1]).strip("_-/.") if "/" in match[1] else match[1]
    return words.fullmatch(value) is None


def _is_drawn_body(match: re.Match[str]) -> bool:
    """Judge what follows a short prefix: one long part of it has to look drawn."""
    longest = max(re.split(r"[-_]", match["value"]), key=len)
    mixed = re.search(r"[a-z]", longest) is not None and re.search(r"[A-Z]", longest) is not None
    return is_random(longest, 12 if mixed else 20)


def _is_no_word(match: re.Match[str]) -> bool:
    return re.fullmatch(r"[a-z]+(?:[-_][a-z]+)*", match[0]) is None


def _hides_secret(match: re.Match[str]) -> bool:
    """Check what base64 encodes: a key, a login, or a text with a secret in it."""
    decoded = decode_text(match[0])
    if (
        re.fullmatch(r"(?=[\w.@+-]*[A-Za-z])[\w.@+-]{2,40}:[!-~]{4,60}", decoded)
        and "://" not in decoded
    ):
        return is_stated_value(decoded.partition(":")[2], True)
    return any(kind != "email" for kind in redact_secrets(decoded)[1]) if decoded else False


def _is_person(match: re.Match[str]) -> bool:
    """Rule out roles, made-up people, decorators, remotes and files such as `a@2x.png`."""
    return not re.search(
        r"^[^A-Za-z]*@|^(?:git|postgres|password|root|your[\w-]*|no-?reply|do-?not-?reply|support|help|info|contact|admin|sales|security|hello"
        r"|team|abuse|postmaster|webmaster|press|privacy|legal|test|tests|user\d?|you|foo|bar|email|name"
        r"|someone|username|token|root|api[\w-]*support)@(?!realcorp)"
        r"|[@.](?:example\.\w+|users\.noreply\.github\.com|test\.\w[\w.]*|email\.com|domain\.\w+|invalid\.\w+"
        r"|foo\.\w+|bar\.\w+|doe\.com|company\.com|acme\.\w+|mail\.com|\w\.\w{2,3}|github\.com)$"
        r"|\.(?:example|test|invalid|local|internal|localhost)$",
        match[0].lower(),
    )


_DOMAINS = (
    r"(?:[a-zA-Z]{2}|com|org|net|edu|gov|mil|int|info|biz|dev|app|cloud|tech|online|site|xyz|name|pro|email"
    r"|software|engineering|systems|solutions|agency|studio|digital|team|live|store|shop|blog|news|club|group"
    r"|world|life|network|zone|tools|academy|company|space|design|law|money|health|care|games|press|COM)"
)
SECRETS: tuple[Secret, ...] = (
    _build_secret(
        "private_key",
        rf"-----BEGIN (?:{_KEY_MARK})-----(?:(?s:.){{0,20000}}?-----END (?:{_KEY_MARK})-----"
        rf"|(?:\\n|\s|Proc-Type[^\n]*|DEK-Info[^\n]*)*[A-Za-z0-9+/=]*{_KEY_LINES})",
        lambda match: "[\\" not in match[0],
    ),
    _build_secret(
        "private_key",
        # The first bytes of PKCS 8, PKCS 1, SEC 1, Ed25519, OpenSSH and PuTTY keys.
        r"(?<![A-Za-z0-9+/])(?:MII[\w+/]{2}[AQgw]IBA[AD]|MI[GH][\w+/]AgE[AB]|MHcCAQEE|MC4CAQAwBQYDK2V"
        rf"|b3BlbnNzaC1rZXktdjE)[A-Za-z0-9+/]{{16,}}={{0,2}}{_KEY_LINES}"
        rf"|Private-Lines: \d+{_KEY_LINES}",
    ),
    _build_secret("anthropic_key", _START + r"sk-ant-[\w-]{16,}" + _WRAPPED),
    _build_secret(
        "openai_key",
        _START + r"sk-(?:proj-|svcacct-|admin-|or-v1-|lf-)?[A-Za-z0-9_-]{20,}" + _WRAPPED,
        _is_no_word,
    ),
    _build_secret("huggingface_token", _START + r"(?:api_)?hf_[A-Za-z0-9]{20,}" + _WRAPPED),
    _build_secret(
        "github_token",
        _START + r"(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})",
    ),
    _build_secret(
        "gitlab_token",
        _START + r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)-([\w.-]{20,})",
        _is_random_token,
    ),
    _build_secret("aws_access_key", _START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _build_secret("google_api_key", _START + r"AIza[\w-]{35}"),
    _build_secret("google_oauth", _START + r"(?:ya29\.|GOCSPX-|1//0)[\w-]{20,}"),
    _build_secret("slack_token", _START + r"(?:xox[abeoprs]|xapp)-[\w-]{10,}"),
    _build_secret(
        "webhook",
        r"hooks\.slack\.com/(?P<value>[\w/+-]{20,})|/api/webhooks/(?P<value2>\d+/[\w-]{20,})"
        r"|webhook\.office\.com/(?P<value3>webhookb2/[\w@/-]{20,})"
        r"|hooks\.zapier\.com/hooks/catch/(?P<value4>[\w/]{6,})|/bot/v2/hook/(?P<value5>[\w-]{20,})",
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
        _START + rf"(?:{_LONG_PREFIXES})[_-]([A-Za-z0-9+/_=-]{{20,}})",
        _is_random_token,
    ),
    _build_secret(
        "service_key",
        # Any provider: a word that says key, and something drawn.
        _START + r"(?:[a-z][a-z0-9]{1,14}[_-]){0,2}"
        r"(?:[sack]k|pat|key|apikey|live|prod|secret|token|tkn|rzp_live|rzp_test)[_-]"
        r"(?P<value>[A-Za-z0-9][\w-]{12,}[A-Za-z0-9])(?![\w.-]*[(\[])",
        _is_drawn_body,
    ),
    _build_secret(
        "service_key",
        _START + r"(?:ATATT3[\w=-]{20,}|AT(?:CTT3|BB|TA)[\w=-]{24,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}"
        r"|dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.]{40,}|SK[a-f0-9]{32}(?![A-Za-z0-9])|BSA[\w-]{24,40}(?![\w-])"
        r"|dapi[a-f0-9]{32}(?:-\d)?|hv[sbr]\.[\w-]{20,}|key-[a-f0-9]{32}|ABSK[A-Za-z0-9+/]{40,}={0,2}"
        r"|IQoJb3JpZ2lu[\w+/=]{40,}|FwoGZXIvYXdz[\w+/=]{40,}|\w{3}\dQ~[\w~.-]{31,34}|[A-Za-z0-9]+AZDO\w{4}(?<=\w{84})"
        r"|[A-Za-z0-9]+(?<=\w{52})JQQJ99\w{18,26}|v1\.0-[a-f0-9]{24}-[a-f0-9]{40,}|\w+(?<=\w{14})\.atlasv1\.[\w-]{40,}"
        r"|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{6}|[A-Z0-9]{11})(?:-[A-Z0-9]{5}){3,4}|oy2[a-z0-9]{43}"
        r"|cio[A-Za-z0-9]{32}(?!\w)|AKCp[A-Za-z0-9]{20,}|access_token\$\w{4,12}\$\w{16}\$[a-f0-9]{32}"
        r"|[a-f0-9]+(?<=[a-f0-9]{32})-(?:us\d{1,2}(?!\w)|[a-f0-9]{8}-[a-f0-9]{8}(?![\w-]))|re_\w{8}_\w{20,}"
        rf"|(?:pat-[a-z]{{2}}\d|access-(?:production|sandbox)|sdk|mob)-{_UUID}|pat\w{{14}}\.[a-f0-9]{{64}}"
        r"|\d/\d{16}(?:/\d{16})?:[a-f0-9]{32}|sl\.(?:u\.)?[\w-]{60,}|EAA[A-Za-z0-9]{60,}|A{20}[\w%]{60,}"
        r"|oauth:[a-z0-9]{30}(?!\w)|dt0\w\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}|[sp]k\.eyJ[\w-]{20,}\.[\w-]{20,}"
        r"|AQVN[\w-]{32,}|LTAI[A-Za-z0-9]{16,20}(?!\w)|AKID[A-Za-z0-9]{28,}|EZ[AT]K[A-Za-z0-9]{54}"
        r"|API-[A-Z0-9]{26}(?!\w)|pat\.[\w-]{22}\.[0-9a-f]{24}\.\w{20}"
        r"|v[1-4]\.(?:local|public)\.[\w-]{40,}|gAAAAA[\w-]{60,}={0,2}|[xyz]prv[1-9A-HJ-NP-Za-km-z]{100,})",
    ),
    _build_secret(
        "wrapped_token",
        _START + r"(?:sk-(?:ant|proj|or)-|gh[pousr]_|github_pat_|hf_|glpat-|xox[abp]-|AIza|npm_"
        r"|[rs]k_live_)[\w-]{4,}[\\\"'+]{0,3}\r?\n[ \t]{0,12}[\"']?(?=\w*\d)[\w-]{8,}"
        r"(?=[\"'`,;]{0,2}[ \t]*(?:\n|\Z))",
    ),
    _build_secret(
        "jwt",
        _START
        + r"eyJ[\w-]{6,1000}\.(?:eyJ[\w-]{6,}\.[\w-]{8,}|[\w-]*\.[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})",
    ),
    _build_secret(
        "password_hash",
        r"\$(?:2[abxy]?\$\d\d\$[./A-Za-z0-9]{53}|(?:apr1|1|5|6|7|y|gy|sha1)\$[./\w$=,]{22,}"
        r"|(?:argon2(?:id|i|d)|scrypt|pbkdf2[\w-]*)\$[./\w$=,+]{22,})"
        r"|\{(?:S?SHA(?:256|512)?|S?MD5|CRYPT)\}[A-Za-z0-9+/]{20,}={0,2}"
        r"|(?:pbkdf2_sha\d+|bcrypt_sha256|scrypt:\d+:\d+:\d|SCRAM-SHA-\d+)\$[\w$:+/=.]{30,}"
        r"|(?<=:)[a-fA-F0-9]{32}:[a-fA-F0-9]{32}(?=:::)",
    ),
    _build_secret(
        "authorization",
        r"(?i:authorization"
        + _QUOTE
        + r"\s{0,8}[:=]\s{0,8}"
        + _QUOTE
        + r"(?:basic|bearer|token|digest|apikey) |bearer (?=[^\s\"'`]{0,40}[0-9]|[A-Za-z]{24})"
        r"|auth plain )(?P<value>[A-Za-z0-9+/_.=~:-]{4,})",
        _is_sent,
    ),
    _build_secret(
        "password_argument",
        r"(?<!\S)--?(?:[a-z]{1,20}-){0,3}(?:pass|password|passwd|passphrase|token|secret|api-?key"
        r"|secret-key|access-key|private-key|storepass|keypass|credential)"
        rf"[ =][\"']?(?P<value>(?!-){_NOT_YET}[^\s\"'\\]{{4,}})",
        _is_real,
    ),
    _build_secret(
        "password_argument",
        rf"\bsshpass\s{{1,8}}-p[ ]?[\"']?(?P<value>{_NOT_YET}[^\s\"']{{3,}})"
        r"|\bmysql(?:dump|admin)?[ ](?:[^\n]{0,200}?\s)?-p"
        rf"(?P<value2>{_NOT_YET}[^\s\"'=-][^\s\"']{{2,}})"
        rf"|\blogin\s{{1,8}}\S{{1,80}}\s{{1,8}}password\s{{1,8}}(?P<value3>{_NOT_YET}[^\s)]{{3,}})(?!\S)"
        r"|\b(?:docker|podman|az|oc|registry)[ ]login[ ][^\n|;&]{0,200}?-p[ =]?[\"']?"
        rf"(?P<value4>{_NOT_YET}[^\s\"'-][^\s\"']{{3,}})"
        r"|\b(?:redis-cli|ldap[a-z]{3,8}|sqlcmd|bcp|zip|unzip)[ ]"
        r"(?:[^\n|;]{0,200}?[ ])?-[awP][ ]?[\"']?"
        rf"(?P<value5>{_NOT_YET}[^\s\"'-][^\s\"']{{3,}})"
        rf"|\s-U[ ]?[\w.\\/-]{{1,60}}%(?P<value6>{_NOT_YET}[^\s\"']{{3,}})"
        rf"|\bpass(?:in|out)?[ ]pass:(?P<value7>{_NOT_YET}[^\s\"']{{3,}})"
        rf"|\bhtpasswd[ ]-\w*b\w*[ ]\S+[ ]\S+[ ][\"']?(?P<value8>{_NOT_YET}[^\s\"']{{3,}})"
        r"|\becho[ ](?:-n[ ])?[\"']?(?:[\w.-]{1,40}:)?"
        rf"(?P<value9>{_NOT_YET}[^\s\"'|]{{4,80}})[\"']?\s*\|\s*"
        r"(?=[^\n|]{0,80}(?:sudo[ ]-S|-stdin|chpasswd))"
        r"|\b(?:gh|glab|doppler|vercel|flyctl|heroku)[ ](?:secrets?|variable)[ ]set"
        r"[ ]\S+[ ]"
        rf"(?:--body|-b|--value)[ =][\"']?(?P<value10>{_NOT_YET}[^\s\"']{{4,}})"
        rf"|\bConvertTo-SecureString[ ](?:-String[ ])?[\"'](?P<value11>{_NOT_YET}[^\"'\n]{{4,}})"
        r"|\b(?i:identified[ ]by|with[ ](?:encrypted[ ])?password|set[ ]password[ ]?=)"
        r"[ ](?:password[ ])?"
        rf"'(?P<value12>{_NOT_YET}[^'\n]{{4,80}})'"
        rf"|\bauth=\([\"'][^\"'\n]{{1,60}}[\"'],[ ]?[\"'](?P<value13>{_NOT_YET}[^\"'\n]{{4,80}})",
        _is_real,
    ),
    _build_secret(
        "stored_login",
        r"(?:\"auth\"\s{0,8}:\s{0,8}\"|\b_auth\s{0,8}=\s{0,8}\"?)(?P<value>[A-Za-z0-9+/=]{12,})"
        r"|(?i:\b(?:set-)?cookie\\{0,2}[\"']?:\s{0,8}+[\"']?+)(?P<value2>(?!\[REDACTED)[^\n\"'\\]{8,2000})"
        r"|(?i:secret_access_key)\s{1,40}(?P<value3>[A-Za-z0-9/+]{40}={0,2})(?![A-Za-z0-9/+=])"
        r"|\"(?:d|p|q|dp|dq|qi|k)\"\s{0,4}:\s{0,4}\"(?P<value4>[\w-]{40,})\"",
        lambda match: "${" not in match[0],
    ),
    _build_secret(
        "stored_login",
        # <password>x</password>, <entry key="db.password">x</entry>, <key>Token</key><string>x
        rf"(?i:{_NAME})[\"']?(?:\s[^<>\n]{{0,80}})?>(?:</key>)?(?P<value>(?!\[REDACTED)[^<\s][^<\n]{{3,200}})</"
        rf"|(?i:{_NAME})</key>\s{{0,20}}<(?:string|data)>(?P<value2>(?!\[REDACTED)[^<\s][^<\n]{{3,200}})</"
        # {"name": "DB_PASSWORD", "value": "x"}, <add key="Secret" value="x"/>
        rf"|(?i:(?:name|key|id)[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"']?[\w.:-]{{0,60}}{_NAME}[\"']?,?\s{{1,40}}"
        rf"[\"']?value[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"']?)(?P<value3>{_NOT_YET}[^\s\"'<>(),\\]{{4,200}})"
        # Forms, and blocks of YAML.
        rf"|(?i:name=[\"'][\w.-]{{0,60}}{_NAME}[\"'])\s{{2,8}}(?P<value4>{_NOT_YET}[^\s\"'<>]{{4,200}})"
        rf"|(?i:{_NAME}):[ ][|>][+-]?\s{{0,4}}\n\s{{1,40}}(?P<value5>{_NOT_YET}[^\s\"'<>]{{4,200}})"
        rf"|(?i:variable\s\"[\w.-]{{0,60}}{_NAME}\"\s\{{\s[^}}]{{0,200}}?default\s{{0,8}}=\s{{0,8}}\")"
        rf"(?P<value6>{_NOT_YET}[^\"\n]{{4,200}})",
        _is_named,
    ),
    _build_secret(
        "pgpass",
        r"(?m:^[\w.*-]{1,100}:(?:\d{2,5}|\*):[\w*-]{1,63}:[\w.-]{1,63}:(?P<value>(?!\[REDACTED)\S{4,})$)",
    ),
    _build_secret(
        "user_argument",
        r"\bcurl[ ](?:[^\n]{0,300}?\s)?(?:-u|--user)[ =]?[\"']?"
        r"(?P<value>(?!\$|\[REDACTED)[^\s\"':]{1,64}:(?!\$)[^\s\"']+)",
        _is_login,
    ),
    _build_secret(
        "url_password",
        r"://(?P<value>(?!\[REDACTED|\$|<|\{)[^\s/@:\"'`<>]{0,64}:(?!\$|<|\{|\[REDACTED)"
        r"[^\s/\"'`<>]{1,128}|[A-Za-z0-9_-]{20,})@(?=[\w\[.-])",
        _is_login,
    ),
    _build_secret(
        "url_parameter",
        r"[?&#](?i:sig|[\w-]{0,30}signature|key|code|auth|[\w-]{0,30}token|[\w-]{0,30}secret|api[_-]?key"
        r"|passw(?:or)?d|pwd|x-(?:amz|goog)-[a-z-]{4,24})="
        r"(?P<value>(?![$<{\[])[^\s&#\"'`<>)\]]{8,})",
        _is_sent,
    ),
    _build_secret(
        "assigned_secret",
        rf"(?i:{_NAME}){_MORE_NAME}(?![A-Za-z0-9])"
        + _QUOTE
        + r"(?:(?<=[\"'])\])?\*{0,2}[ \t]{0,24}"
        + r"(?P<sign>=>|:=|[=!]==?|[:=]|\uff1a)(?![=:])\*{0,2}[ \t]{0,8}(?P<quote>"
        + _QUOTE
        + r")"
        r"(?P<value>(?<=[\"'`])(?!\[REDACTED)[^\"'`\n\\]{4,256}+"
        r"|(?<![\"'`])[^\s\"'`,;<>(){}\[\]\\]{4,256}+(?![(\[]))",
        _is_assigned,
    ),
    _build_secret(
        "assigned_secret",
        rf"(?i:{_NAME})(?:%22|&quot;|&#34;|&#x22;)(?:%3[Aa]|%3[Dd]|:|=)(?:%20| )?"
        r"(?:%22|&quot;|&#34;|&#x22;)?"
        r"(?P<value>(?!%|&|\[REDACTED)(?:(?!%2|%7|&)[^\s\"'<>]){4,200})",
        _is_named,
    ),
    _build_secret(
        "assigned_secret",
        # set("password", "x"), getenv("TOKEN", "x"), setPassword("x")
        rf"(?i:(?:set|define|put|env|default)\w{{0,12}}\(\s?[\"'][\w.-]{{0,60}}{_NAME}[\"'],\s{{0,4}}"
        rf"|(?:set|with|use)_?{_NAME}\(\s?)[\"'](?P<value>(?!\[REDACTED)[^\"'\n]{{4,200}})",
        _is_named,
    ),
    _build_secret(
        "assigned_secret",
        r"(?i:key)(?:_base|_b64)?[\"'`]?[ \t]{0,8}(?P<sign>=>|:=|[:=])[ \t]{0,8}[\"'`]?"
        r"(?P<value>(?:base64:)?[A-Za-z0-9+/_.-]{20,200}={0,2})(?![\w(\[])",
        _is_random_key,
    ),
    _build_secret(
        "stated_secret",
        # The password for x is y; | token | y |; ENV API_TOKEN y; API key:\n\n y
        rf"(?i:{_NAME})(?![A-Za-z0-9])(?i:[ ](?:for|of)[ ][\w.@/-]{{1,40}})?"
        r"(?P<link>[`\"'*_)]{0,3}(?:[ \t]{0,20}(?:\||→|=>|->|:\s)"
        r"|[ ](?i:is|was|to|lautet|ist|est|es|becomes)(?i:[ ](?:now|set to|still|currently))?:?)?)"
        r"(?:(?<=:\n)\s{0,20}|(?<=:)\s{1,20}|[ \t]{1,24})"
        r"[`\"'*(]{0,3}(?P<value>(?=[^\s`\"'*<>|\\]{6})[^\s`\"'*<>|\\\d]{0,200}\d[^\s`\"'*<>|\\]{0,200})",
        _is_stated,
    ),
    _build_secret(
        "stated_secret",
        r"(?i:credentials?|creds|log(?:ged)? ?in|sign(?:ed)? ?in)(?: (?:with|as|are|is|using))?:? "
        r"[`\"']?[\w.@+-]{2,40}[`\"']?(?P<link> ?[/:] ?)[`\"']?"
        r"(?P<value>(?=[^\s`\"'*<>|/\\]{6})[^\s`\"'*<>|/\\\d]{0,80}\d[^\s`\"'*<>|/\\]{0,80})",
        _is_stated,
    ),
    _build_secret(
        "mnemonic",
        r"(?i:mnemonic|(?:seed|recovery|backup)[ ](?:phrase|words))[\"'`*]{0,3}\s{0,4}(?::|=|is)"
        r"[\s\"'`*]{0,6}"
        r"(?P<value>(?:[a-z]{3,8}[ ,]{1,3}){11,23}[a-z]{3,8})",
    ),
    _build_secret("secret_bytes", r"\[\s?(?:\d{1,3},\s{0,3}){63}\d{1,3}\s?\]"),
    _build_secret(
        "encoded_secret",
        # Base64 whose bytes are all printable: what random bytes and pictures never are.
        r"(?<![A-Za-z0-9+/_-])(?:[A-Ha-f][A-HQ-Xg-nw-z0-3][A-Za-z0-9+/]{2}|[I-Za-f][A-HQ-Xg-nw-z0-3]"
        r"[ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/])"
        r"(?:[CI-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/]){3,}"
        r"[A-Za-z0-9+/]{0,3}={0,2}(?![A-Za-z0-9+/])",
        _hides_secret,
    ),
    _build_secret(
        "high_entropy",
        r"(?:[A-Z][A-Z0-9_]{2,40}|(?i:key|auth|cred|sign|salt|seed|pass|pw|secret|token|bearer|api"
        r"|licen[cs]e|private|webhook|jwt|hmac|otp|cert)[\w.-]{0,16})[\"'\\\]]{0,3}[ \t]{0,4}"
        r"(?::=|=>|[=:])[ \t]{0,4}[\"'\\]{0,3}"
        r"(?P<value>[A-Za-z0-9+/_-]{24,128}={0,2})(?![A-Za-z0-9+/_=.-])",
        _is_random_and_assigned,
    ),
    _build_secret(
        "email",
        r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,4}"
        + _DOMAINS
        + r"(?![A-Za-z0-9])(?!\.[A-Za-z])",
        _is_person,
    ),
)
# A line of a table in which a heading names a secret.
_HEADING = re.compile(
    rf"(?im)(?:^|[|,;\t]|[ ]{{2}})[ \t\"*`]{{0,4}}(?:[\w.-]{{1,30}}[_ -])?{_NAME}[ \t\"*`]{{0,4}}"
    r"(?:$|[|,;\t]|[ ]{2})"
)
_PATTERNS = [*(secret.pattern for secret in SECRETS), _HEADING]
# Two automata with few states each are faster than one with their product.
_GROUPS = (0, 25, len(_PATTERNS))
_PREFILTERS = [(a, Prefilter(_PATTERNS[a:b])) for a, b in pairwise(_GROUPS)]
_FINDERS = [re2.compile(widen_pattern(pattern).encode()) for pattern in _PATTERNS]
# How far a match may go on where RE2 has found the shortest.
_REACH = 300
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_TAIL = re.compile(
    r"(?:(?:\A|(?<=[\s\"'n]))[ \t]*(?=[^\n\\]{0,200}[\d+/=]|[A-Za-z+/]{40})[A-Za-z0-9+/=]+"
    r"(?:\\r)?(?:\\n|\s)*)+\Z"
)
# Soft hyphens and characters without width, also as written in HTML.
_INVISIBLE_SIGNS = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_INVISIBLE = re.compile(f"[{_INVISIBLE_SIGNS}]+")


def redact_secrets(text: str) -> tuple[str, list[str]]:
    """Return the text with `[REDACTED:kind]` for every secret, and the kinds in that order.

    Redacting the result again changes nothing.

    >>> redact_secrets("DB_PASSWORD=hunter2 and max_tokens=4096")
    ('DB_PASSWORD=[REDACTED:assigned_secret] and max_tokens=4096', ['assigned_secret'])
    """
    cleaned, kinds = _redact_visible(text)
    if not text.isascii() and any(sign in text for sign in _INVISIBLE_SIGNS):
        whole, more = _redact_visible(_INVISIBLE.sub("", text))
        # Elsewhere they belong to the text, as in joined pictographs.
        if len(more) > len(kinds):
            return whole, more
    return cleaned, kinds


def _redact_visible(text: str) -> tuple[str, list[str]]:
    kinds: list[str] = []
    for first, prefilter in _PREFILTERS:
        candidates = prefilter.candidates(text)
        while candidates:
            number, before = candidates[0], len(kinds)
            text = _redact_kind(first + number, text, kinds)
            # A replacement may uncover or hide what later patterns look for.
            again = prefilter.candidates(text) if len(kinds) > before else candidates
            candidates = [other for other in again if other > number]
    return _redact_key_tails(text, kinds), kinds


def _redact_kind(number: int, text: str, kinds: list[str]) -> str:
    if number == len(SECRETS):
        return _redact_columns(text, kinds)
    secret = SECRETS[number]
    if secret.kind == "private_key":
        # Its end may be far away.
        return secret.pattern.sub(partial(_replace, secret, kinds), text)
    # A pattern may start anywhere, which is slow: it is tried only where RE2 finds it widened.
    parts: list[str] = []
    done = 0
    for start, stop in _find_widened(number, text):
        at = max(start, done)
        line_end = text.find("\n", stop)
        limit = min(len(text) if line_end < 0 else line_end, stop + _REACH)
        while (match := secret.pattern.search(text, at, limit)) and match.start() <= stop:
            parts += text[done : match.start()], _replace(secret, kinds, match)
            at = done = match.end()
    return "".join([*parts, text[done:]])


def _find_widened(number: int, text: str) -> Iterator[tuple[int, int]]:
    """Yield where the widened pattern is found, in characters."""
    encoded = text.encode()
    if len(encoded) == len(text):
        yield from (found.span() for found in _FINDERS[number].finditer(encoded))
        return
    seen = at = 0
    for found in _FINDERS[number].finditer(encoded):
        start = at + len(encoded[seen : found.start()].decode())
        at = start + len(found[0].decode())
        seen = found.end()
        yield start, at


def find_secret_kinds(text: str) -> list[str]:
    """Return the kinds of the secrets in a text."""
    return redact_secrets(text)[1]


def _replace(secret: Secret, kinds: list[str], match: re.Match[str]) -> str:
    start, end = match.span(match.lastgroup) if match.lastgroup else match.span()
    # What follows says that the harness has masked it already.
    is_masked = end - start < 20 and match.string.startswith(("…", "..."), end)
    if is_masked or not secret.judge(match):
        return match[0]
    kinds.append(secret.kind)
    at = match.start()
    return f"{match[0][: start - at]}[REDACTED:{secret.kind}]{match[0][end - at :]}"


def _redact_key_tails(text: str, kinds: list[str]) -> str:
    """Redact the end of a key whose beginning the harness has cut off."""
    if "-----END" not in text:
        return text
    parts = _KEY_END.split(text)
    kinds.extend(["private_key"] * (len(parts) - 1))
    cleaned = [_KEY_TAIL.sub("", part) + " [REDACTED:private_key]" for part in parts[:-1]]
    return "".join([*cleaned, parts[-1]])


_NAMES_SECRET = re.compile(rf"(?i)(?:[\w.-]{{1,30}}[_ -])?{_NAME}")
_RULE = re.compile(r"[\s|+:=-]+")


def _redact_columns(text: str, kinds: list[str]) -> str:
    """Redact the columns of tables whose heading names a secret; adds to `kinds`."""
    lines = text.split("\n")
    for start, _ in _find_widened(len(SECRETS), text):
        number = text.count("\n", 0, start)
        heading = lines[number]
        if len(heading) > 500:
            continue
        spans = _split_cells(heading)
        columns = [n for n, (a, b) in enumerate(spans) if _names_secret(heading[a:b])]
        if columns and 2 <= len(spans) <= 20:
            _redact_rows(lines, number, spans, columns, kinds)
    return "\n".join(lines)


def _redact_rows(
    lines: list[str],
    number: int,
    spans: list[tuple[int, int]],
    columns: list[int],
    kinds: list[str],
) -> None:
    """Redact the columns in the lines below a heading, as far as the table goes."""
    heading = lines[number]
    is_drawn = "|" in heading or "\t" in heading
    is_aligned = not is_drawn and "," not in heading and ";" not in heading
    for below in range(number + 1, len(lines)):
        line = lines[below]
        if not line.strip():
            return
        if _RULE.fullmatch(line):
            continue
        cells = _align_cells(line, spans) if is_aligned else _split_cells(line)
        if len(cells) != len(spans):
            return
        for column in reversed(columns):
            line = _redact_cell(line, *cells[column], is_drawn, kinds)
        lines[below] = line


def _names_secret(cell: str) -> bool:
    return _NAMES_SECRET.fullmatch(cell.strip(' \t"*`|')) is not None


def _split_cells(line: str) -> list[tuple[int, int]]:
    """Return where the cells of a line are, by the first separator that the line has."""
    sign = next((sign for sign in ("|", "\t", ";", ",") if sign in line), "  ")
    pattern = r"\S+(?: \S+)*" if sign == "  " else rf"[^{re.escape(sign)}]+"
    return [found.span() for found in re.finditer(pattern, line) if found[0].strip()]


def _align_cells(line: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the words of a line that stand below the headings."""
    cells = [found.span() for found in re.finditer(r"\S+(?: \S+)*", line)]
    below = [
        next((cell for cell in cells if cell[0] < end and cell[1] > start), (0, 0))
        for start, end in spans
    ]
    return below if cells else []


def _redact_cell(line: str, start: int, end: int, is_drawn: bool, kinds: list[str]) -> str:
    cell = line[start:end].strip(" \t\"'`*")
    if "[REDACTED" in cell or " " in cell or is_made_up(cell):
        return line
    # Outside of drawn tables, only random values and mixed signs are told from words.
    is_mixed = re.fullmatch(r"(?=.*[a-z])(?=.*\d)(?=.*[^\w.,;:-])[!-~]{6,40}", cell)
    if not is_mixed and not is_stated_value(cell, is_drawn or is_random(cell)):
        return line
    begin = line.index(cell, start)
    kinds.append("stated_secret")
    return f"{line[:begin]}[REDACTED:stated_secret]{line[begin + len(cell) :]}"

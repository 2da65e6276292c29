"""Find later user messages that correct the agent.

No fixed wording marks a correction, so this is a short list of phrasings with a negative list in
front of it, and a prior: a user who just aborted the agent is usually about to correct it.
A plain follow-up ("commit", "continue", "yes") is never a correction.
"""

import re
from collections.abc import Sequence

from pimono_sdpo.harness.event import Event
from pimono_sdpo.schema import Correction

MIN_CHARS = 8
_WORDS = 400

_FOLLOW_UP = re.compile(
    r"^\W*(?:ok(?:ay|i)?|yes|yeah|yep|sure|continue|proceed|go(?: on| ahead)?|commit|push|thanks?"
    r"|thank you|great|nice|perfect|good|cool|wow|done|beautiful|sounds good|looks good|alright"
    r"|hi|hello|hey|next|lgtm|retry|try again|weiter|danke|gut|ja|はい|続けて|好的?|继续|可以)\b",
    re.IGNORECASE,
)
_AUTOMATED = re.compile(
    r"^(?:/[\w:-]+|Task:|Tool budget|\[(?:system|tool_result|Request interrupted)|<[a-z_-]+>)"
)
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "negation",
            r"^\W*(?:(?:well|hmm+|wait|dude|actually|sorry|jesus|but)[\s,.]+)*"
            r"(?:no(?:pe|oo+)?\b[\s,.!:]|nah+\b|wrong\b|stop\b|undo\b|revert\b|don'?t\b|do not\b)",
        ),
        (
            "not_as_wanted",
            r"\bnot (?:what|how|right|it\b|correct|the )|n[o']t what i|\bisn'?t (?:what|right)"
            r"|that'?s (?:not|wrong|horrible|incorrect|false|all super)"
            r"|this is (?:wrong|not how)"
            r"|\bi (?:said|told|asked|meant|actually want)|\binstead of\b|\binstead\W*$"
            r"|\bas i said\b|\byou (?:forgot|missed|ignored|broke|removed|deleted|haven?'?t"
            r"|havne'?t|didn'?t|did not|still(?! there)|should(?:n'?t| not) have)",
        ),
        (
            "still_broken",
            r"\b(?:still|again|now) (?:fails?|failing|broken|the same|not|doesn'?t|wrong|crash\w*"
            r"|looks?|gets?|shows?|brighter)\b|\bdoes(?:n'?t| not) (?:work|trigger|compile|adhere"
            r"|look right|update|match)|\bdon'?t (?:work|trigger|t?h?ink the)\b|\bnot working\b"
            r"|\bsame (?:error|problem|issue)\b|\bbroke(?:n)?\b|\bi can'?t see\b|\bgot worse\b",
        ),
        (
            "rebuke",
            r"\bwtf\b|w\.t\.f|\bfuck(?:ed|s|ing hell)?\b.*\b(?:up|you)\b|\bfucking hell\b|\bomfg\b"
            r"|\bwhy (?:do|did|would|are) (?:you|we)\b.*\b(?:idiot|again|clear|then|track)\b"
            r"|\byou idiot\b|\bare you (?:\w+ )?stupid\b|\bstop (?:doing|comm?it|writing|adding)"
            r"|\bnot good\b|\bsucks\b|\btoo (?:intense|high|low|long|verbose|complicated)\b",
        ),
        (
            "other_languages",
            r"\b(?:nein|falsch|nicht (?:so|das|was)|das stimmt nicht|immer noch|ich meinte)\b"
            r"|\b(?:non,|ce n'est pas|toujours pas)\b|\b(?:no es|está mal|sigue sin)\b"
            r"|不是|不对|错了|之前不是|没有(?:用|效)|違い?ます|違う|ではなく|じゃなく|まだ(?:動|失敗)"
            r"|間違|直って(?:い)?ない|아니(?:야|라|요)|틀렸|여전히",
        ),
    )
)
_REDIRECT = re.compile(
    r"\b(?:why|should|must|need(?:s|ed)? to|instead|actually|not|n't|no|first|rather|read|use"
    r"|look at|see)\b|\.\.\.|!",
    re.IGNORECASE,
)


def find_corrections(events: Sequence[Event]) -> list[Correction]:
    """Return the user messages after the first one that correct the agent, with the rule."""
    found: list[Correction] = []
    seen_user = False
    aborted = False
    for event in events:
        if not event.on_active_branch:
            continue
        if event.kind == "assistant":
            aborted = event.stop_reason == "aborted"
        elif event.kind == "user":
            rule = correction_rule(event.text, aborted) if seen_user else None
            if rule:
                found.append({"text": event.text.strip(), "event_index": event.index, "rule": rule})
            seen_user, aborted = True, False
    return found


def correction_rule(text: str, aborted: bool) -> str | None:
    """Name the rule by which a later user message is a correction; None when it is not.

    >>> correction_rule("no, keep the old file name", aborted=False)
    'negation'
    >>> correction_rule("ok, commit and push", aborted=True) is None
    True
    """
    body = text.strip()
    if _AUTOMATED.search(body) or (len(body) < MIN_CHARS and body.isascii()):
        return None
    opening = body[:_WORDS]
    if _FOLLOW_UP.search(opening):
        return None
    for name, pattern in _RULES:
        if pattern.search(opening):
            return name
    return "after_abort" if aborted and _REDIRECT.search(opening) else None

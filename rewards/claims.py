"""Sentences that cannot explain a failure: refusals, denials, and results nobody has seen."""

import re

_NEVER = (
    r"(?:can ?not|can['\u2019]t|won['\u2019]t|will not|would rather not|must not|unable to"
    r"|not able to)"
)
_HELP = (
    r"(?:help|assist|comply|discuss|answer|provide|support|engage|fulfil|continue|work on|touch)"
)

_REFUSAL = re.compile(
    rf"\bsorry\b|\b(?:i|we)(?: am| are|['\u2019]m|['\u2019]re)? {_NEVER} (?:\w+ )?{_HELP}\b"
    r"|\bi(?: am|['\u2019]m) (?:afraid|unable|not able)\b|\bas an ai\b|\bnot possible for me\b"
    r"|\b(?:i|we) (?:have to |must )?(?:decline|refuse)\b|\b(?:ask|consult) (?:someone|somebody)\b"
    r"|\bnot comfortable\b|\b(?:forbids?|forbidden|prohibit\w*|off[ -]limits)\b"
    r"|\bagainst (?:my|the|our)? ?(?:policy|policies|guidelines|rules)\b"
    r"|tut mir leid|kann (?:ich )?(?:\w+ )?nicht helfen|désolé|ne peux pas (?:vous )?aider"
    r"|lo siento|no puedo ayudar|desculpe|não posso ajudar|mi dispiace|non posso aiutar"
    r"|не могу помочь|извините|к сожалению, я не|przykro mi|nie mogę pomóc|przepraszam"
    r"|申し訳|お手伝いできません|抱歉|对不起|無法協助|无法帮助|죄송"
)
_PROBLEM = r"(?:error|problem|bug|issue|failure|fault|defect|mistake)s?"
_DENIAL = re.compile(
    rf"\b(?:no|not an?|isn['\u2019]t an?|never (?:was |had )?an?|without any) (?:\w+ )?{_PROBLEM}\b"
    rf"|\bnot (?:see|find|have|know of) any {_PROBLEM}\b"
    r"|\bnothing (?:is |was |to |at all )*(?:wrong|broken|missing|fix|change|do|failed|be)\b"
    r"|\b(?:works?|worked|working|runs?|is|are) (?:just )?(?:as expected|as intended|correctly|fine"
    r"|perfectly|correct|okay|ok)\b"
    rf"|\b(?:without|zero|free of) (?:any )?{_PROBLEM}\b|\bno (?:changes?|fix|action)\b"
    r"|\bnot (?:broken|wrong|failing|affected)\b|\blooks? (?:good|fine|correct)\b|\bharmless\b"
    r"|\ball is (?:well|good|fine)\b|\bno need (?:to|for)\b"
    r"|\b(?:did|does|do|has|have)(?:n['\u2019]t| not| never) (?:even )?"
    r"(?:fail|failed|happen|happened|occur|occurred)\b|\bnever (?:failed|happened|occurred)\b"
    r"|\b(?:can|should|may|please|just) (?:safely )?ignore\b"
    r"|нет (?:никак\w+ )?(?:ошиб|проблем)|вс[её] (?:работает|в порядке)|nie ma (?:żadn\w+ )?"
    r"(?:błęd|problem)|wszystko (?:działa|jest w porządku)|(?:kein|keine) (?:fehler|problem)"
    r"|alles in ordnung|(?:no hay|não há|non c'è|il n'y a pas d')(?: \w+)? ?(?:err|probl)"
    r"|没有(?:错误|问题)|問題(?:は)?ありません"
)
_ALL_PASS = re.compile(
    r"(?<!that )(?<!until )(?<!whether )(?<!if )"
    r"\b(?:all|every|\d+)(?: \d+)?(?: of the| the)? (?:\w+ )?tests? (?:now )?(?:pass|passed|passes"
    r"|succeed(?:ed)?|are green)\b"
)
_RESULT_LINE = re.compile(
    r"^[ \t]*(?:[✓✔√][^\n]{0,300}(?:\d ?m?s\b|\(\d+ tests?)|(?:PASS|PASSED|OK)[ \t]+\S*[./]\S*"
    r"|(?:---|===)[ \t]+PASS:?|ok[ \t]+\d+|=+[ \t].{0,80}\bpassed\b"
    r"|Tests?(?: Files)?:?[ \t]+\d+ passed"
    r"|\d+ (?:tests? )?pass(?:ed|ing)\b|test result: ok|BUILD SUCCESS|Found 0 errors"
    r"|\S{1,200} (?:PASSED\b|passed[ \t]*$|\.{2,9} ?ok\b)"
    r"|</?tool_(?:response|result|output)s?>"
    r"|(?:Command |Process )?exit(?:ed with)?(?: code:?)? 0\b)",
    re.MULTILINE,
)


def refuses(sentence: str) -> bool:
    """Tell whether a lower-cased sentence declines to help."""
    return bool(_REFUSAL.search(sentence))


def explains_nothing(sentence: str) -> bool:
    """Tell whether a lower-cased sentence refuses, denies, asks, or reports a success."""
    if sentence.rstrip().endswith(("?", "\uff1f")) or refuses(sentence):
        return True
    return bool(_DENIAL.search(sentence) or _ALL_PASS.search(sentence))


def shows_results(text: str, known: str) -> bool:
    """Tell whether a text shows the lines of a successful run that `known` does not have.

    >>> shows_results("  Tests  12 passed (12)", "Tests  1 failed | 11 passed (12)")
    True
    """
    return any(match.group(0).strip() not in known for match in _RESULT_LINE.finditer(text))

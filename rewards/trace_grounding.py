"""Reward a concrete answer that speaks of the failure it was asked about, or acts on it.

columns  reward_terms, privileged_context / range 0 to 1, or None without a concrete term

A sentence earns its terms by the words around them: words of its own, not copied from the prompt or
the context, that say what is wrong or what is done about it (`rewards.lexicon`). An action earns
its part when it is a command, a call of a tool or code, and names a term. Lists, copies, refusals,
denials and results of runs that nobody saw earn nothing.

A heuristic, which cannot tell whether an answer is right: a confident, wrong diagnosis in the words
of the trade scores like a right one, and so does nonsense made of these words on purpose; opening
the file that the failure names is always a success; an answer in a language whose words are not in
the lexicon is judged by its actions alone. Only running the tests can mend that.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from pimono_sdpo.failures import CATEGORIES
from rewards.actions import Act, act
from rewards.answers import Conversation, parsed, text_of
from rewards.claims import explains_nothing, refuses, shows_results
from rewards.lexicon import FUNCTION_WORDS, is_move, is_technical
from rewards.words import CJK, Sentence, Word, sentences, unwrapped

GROUNDING_WEIGHT = 0.7
ACTION_WEIGHT = 0.3  # an action that names a term, beside what is said
ACTION_ONLY = 0.45  # the same action, when nothing is said
ACTION_ALONE = 0.1  # any other action
INVENTED_RESULTS = 0.2  # at most, for an answer that shows a successful run
BREADTH = (0.0, 0.6, 0.8, 1.0)  # by terms named
TECHNICAL_NEEDED = 6
MOVES_NEEDED = 2

MIN_OWN_WORDS = 4
MIN_CJK = 6  # pairs of signs
MAX_TERMS_PER_SENTENCE = 2
MIN_TECHNICAL_SHARE = 0.34  # of the words of content
MIN_TECHNICAL_CJK = 0.15
MAX_CHARS = 50_000

__all__ = ["text_of", "trace_grounding_reward"]


def trace_grounding_reward(
    prompts: Sequence[str | Conversation],
    completions: Sequence[str | Conversation],
    reward_terms: Sequence[Sequence[str]],
    privileged_context: Sequence[str | None] | None = None,
    **_: object,
) -> list[float | None]:
    """Score each completion by the concrete terms of its row that its own sentences use.

    Usable as it is in TRL's SDPO and GRPO trainers, which pass every dataset column. A row whose
    `reward_terms` hold nothing but categories gives None; TRL's `nansum` counts that as 0.

    >>> answer = "The build stops because src/cli.ts is missing, so I restore that file with git."
    >>> ask = "Why does the build fail?"
    >>> trace_grounding_reward([ask], [answer], [["enoent", "src/cli.ts"]])
    [0.42]
    >>> trace_grounding_reward([ask], ["enoent src/cli.ts"], [["enoent", "src/cli.ts"]])
    [0.0]
    """
    contexts = privileged_context or [None] * len(completions)
    rows = zip(prompts, completions, reward_terms, contexts, strict=True)
    return [
        _score(text_of(completion, "assistant"), terms, (text_of(prompt), context or ""))
        for prompt, completion, terms, context in rows
    ]


def _score(text: str, reward_terms: Sequence[str], references: tuple[str, str]) -> float | None:
    terms = {term.lower() for term in reward_terms} - set(CATEGORIES) - {""}
    if not terms:
        return None
    text = text[:MAX_CHARS]
    answer = parsed(text)
    said = _said(sentences(unwrapped(answer.prose), references), terms)
    done = act(answer, partial(_named, terms=terms), references)
    # An edit may leave it to the sentence beside it to name what it edits.
    if said and done >= Act.EDIT:
        score = max(said + ACTION_WEIGHT, ACTION_ONLY)
    elif done is Act.AIMED:
        score = ACTION_ONLY
    else:
        score = said + (ACTION_ALONE if done else 0.0)
    if shows_results(text, "\n".join(references)):
        score = min(score, INVENTED_RESULTS)
    return round(score, 6)


def _said(parts: Sequence[Sentence], terms: set[str]) -> float:
    """Score what the sentences say: terms, as many as there are moves and technical words for.

    The function words of a sentence are its frame: filling one frame twice is a template.
    """
    if any(refuses(part.text) for part in parts):
        return 0.0
    named: set[str] = set()
    technical: set[str] = set()
    moves: set[str] = set()
    frames: set[tuple[str, ...]] = set()
    for sentence in parts:
        own = sentence.own
        frame = tuple(word.text for word in own if word.text in FUNCTION_WORDS)
        if frame in frames or not _is_prose(own, len(sentence.words)):
            continue
        if explains_nothing(sentence.text):
            continue
        content = [word for word in own if _is_content(word, terms)]
        telling = {word.text for word in content if is_technical(word.text)}
        if not telling - technical or not _is_mostly_technical(telling, content):
            continue
        technical |= telling
        moves.update(word.text for word in content if word.novel and is_move(word.text))
        found = [term for term in _separate(sentence.text, content, terms) if term not in named]
        named.update(found[:MAX_TERMS_PER_SENTENCE])
        if found and frame:
            frames.add(frame)
    credited = min(len(named), _weight(moves), len(BREADTH) - 1)
    breadth = 1.0 if credited == len(terms) else BREADTH[credited]
    substance = min(1.0, _weight(technical) / TECHNICAL_NEEDED, _weight(moves) / MOVES_NEEDED)
    return GROUNDING_WEIGHT * breadth * substance


def _is_mostly_technical(telling: set[str], content: Sequence[Word]) -> bool:
    cjk = any(CJK.match(word.text) for word in content)
    share = MIN_TECHNICAL_CJK if cjk else MIN_TECHNICAL_SHARE
    return len(telling) >= share * len({word.text for word in content})


def _is_prose(own: Sequence[Word], total: int) -> bool:
    """Tell whether a sentence is more than a copy and has a word that holds it together."""
    if len(own) * 2 < total:
        return False
    if sum(1 for word in own if CJK.match(word.text)) >= MIN_CJK:
        return True
    return len(own) >= MIN_OWN_WORDS and any(word.text in FUNCTION_WORDS for word in own)


def _is_content(word: Word, terms: set[str]) -> bool:
    text = word.text
    if text in FUNCTION_WORDS or text[0].isdigit():
        return False
    return not any(text in term or term in text for term in terms)


def _weight(found: set[str]) -> int:
    """Count words; a pair of CJK signs is half of one."""
    pairs = sum(1 for word in found if CJK.match(word))
    return len(found) - pairs + (pairs + 1) // 2


def _separate(text: str, content: Sequence[Word], terms: set[str]) -> Iterator[str]:
    """Yield the terms in a text; of those with no word of content between, only the first."""
    edge = None
    for start, end, term in _occurrences(text, terms):
        if edge is None or any(edge <= word.start < start for word in content):
            yield term
        edge = end if edge is None else max(edge, end)


def _named(text: str, terms: set[str]) -> list[str]:
    """Return the terms in a text, of overlapping ones the longer."""
    found: list[str] = []
    edge = 0
    for start, end, term in _occurrences(text, terms):
        if start >= edge:
            found.append(term)
        edge = max(edge, end)
    return found


def _occurrences(text: str, terms: set[str]) -> list[tuple[int, int, str]]:
    """Return where each term first stands as a whole, in order; the longer of two comes first."""
    found = [(start, term) for term in terms if (start := _whole(text, term)) >= 0]
    ordered = sorted(found, key=lambda hit: (hit[0], -len(hit[1]), hit[1]))
    return [(start, start + len(term), term) for start, term in ordered]


def _whole(text: str, term: str) -> int:
    """Return where the term stands and is not inside a longer word, or -1."""
    position = text.find(term)
    while position >= 0:
        end = position + len(term)
        if not (_is_word(text[max(position - 1, 0) : position]) or _is_word(text[end : end + 1])):
            return position
        position = text.find(term, end)
    return -1


def _is_word(sign: str) -> bool:
    return sign.isascii() and (sign.isalnum() or sign == "_")

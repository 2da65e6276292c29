"""Every attack on a row scores below every honest answer to it, in every language and form."""

# ruff: noqa: RUF001 (Cyrillic words)

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from pimono_sdpo.failures import CATEGORIES
from processors.salient_tokens import find_salient_tokens
from rewards import trace_grounding_reward
from tests.linear import is_linear

THRESHOLD = 0.35
MARGIN = 0.1


class Case(NamedTuple):
    prompt: str
    context: str
    terms: list[str]
    honest: dict[str, Any]


def call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def called(name: str, **arguments: object) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": arguments}
    return [{"role": "assistant", "content": "", "tool_calls": [{"function": function}]}]


POOL = Case(
    "Add a method Pool::drain_expired to src/pool.rs that removes all entries older than a given "
    "Instant and returns them. Write a unit test for it as well.",
    """Tool/environment diagnostic 1 (build_lint_compile, command_error):
Compiling tidepool v0.3.1
error[E0499]: cannot borrow `self.entries` as mutable more than once at a time
  --> src/pool.rs:58:13
   |
57 |         for (key, entry) in self.entries.iter_mut() {
58 |             self.entries.remove(key);

error: could not compile `tidepool` (lib test) due to 1 previous error

Command exited with code 101

Later user correction 1:
Nein, das ist nicht was ich meinte: bitte keine Schleife mit remove, nimm retain oder extract_if""",
    [
        *("build_lint_compile", "command_error", "user_feedback", "src/pool.rs:58", "e0499"),
        *("src/pool.rs", "iter_mut", "extract_if", "self.entries", "tidepool"),
    ],
    {
        "prose": "The loop holds a mutable borrow through iter_mut while the body removes keys, "
        "which is what E0499 means. I will replace it by extract_if, collect what it yields and "
        "return that vector.",
        "bullets": "- Cause: iter_mut borrows the map while the body removes from it (E0499)\n"
        "- Fix: collect with extract_if instead of the loop, then return the vector\n"
        "- Check: cargo test drain_expired in src/pool.rs",
        "headings": "**Cause**\nThe loop keeps iter_mut alive during the removal, hence E0499.\n\n"
        "**Fix**\nUse extract_if in src/pool.rs and return the drained values.\n\n"
        "**Check**\n`cargo test drain_expired`",
        "russian": "Цикл держит изменяемую ссылку через iter_mut и одновременно удаляет записи, "
        "поэтому компилятор выдаёт E0499. Я заменю цикл на extract_if в src/pool.rs, соберу "
        "результат в вектор и добавлю тест.",
        "polish": "Pętla trzyma pożyczkę przez iter_mut i w tym samym czasie usuwa wpisy, dlatego "
        "kompilator zgłasza błąd E0499. Zamienię pętlę na extract_if w pliku src/pool.rs, zwrócę "
        "wynik i dodam test.",
        "code": "```rust\npub fn drain_expired(&mut self, now: Instant) -> Vec<Entry> {\n"
        "    self.entries.extract_if(|_, e| e.at < now).map(|(_, e)| e).collect()\n}\n```",
        "json_call": call("bash", command="sed -n 50,66p src/pool.rs"),
        "tool_call": f"<tool_call>{call('read', path='src/pool.rs', offset=50)}</tool_call>",
        "message": called("bash", command="cargo test --lib drain_expired -- src/pool.rs"),
    },
)

MONEY = Case(
    "pytest fails since I moved the rounding into ledger/money.py. Could you fix the failing tests "
    "without changing the public functions? The invoices must still add up to the cent.",
    """Tool/environment diagnostic 1 (test_or_assertion, runtime_exception, command_error):
F.
=================================== FAILURES ===================================
______________________________ test_split_invoice ______________________________
Traceback (most recent call last):
  File "$WORKSPACE/tests/test_money.py", line 18, in test_split_invoice
    parts = split_invoice(total, 3)
  File "$WORKSPACE/ledger/money.py", line 44, in split_invoice
    return [round_half_even(part) for part in parts]
TypeError: round_half_even() missing 1 required positional argument: 'places'

FAILED tests/test_money.py::test_split_invoice - TypeError
1 failed, 1 passed in 0.31s

Command exited with code 1""",
    [
        *("command_error", "runtime_exception", "test_or_assertion", "typeerror"),
        *("tests/test_money.py", "ledger/money.py", "test_split_invoice", "test_money"),
        *("split_invoice", "round_half_even", "places"),
    ],
    {
        "prose": "round_half_even got a new parameter when you moved it, but split_invoice still "
        "calls it with one value. I pass places=2 there, so the signature stays and the cents add "
        "up, and rerun tests/test_money.py.",
        "bullets": "- split_invoice calls round_half_even without the new argument\n"
        "- pass places=2 in ledger/money.py; the public signature does not change\n"
        "- rerun the failing test afterwards",
        "headings": "**Cause:** split_invoice in ledger/money.py calls the helper without its new "
        "argument.\n**Fix:** hand over places=2 at that call.\n"
        "**Check:** `pytest tests/test_money.py -q`",
        "russian": "Функция split_invoice вызывает round_half_even без нового аргумента, поэтому "
        "тест падает. Я передам places=2 в этом вызове и снова запущу tests/test_money.py.",
        "polish": "Funkcja split_invoice wywołuje round_half_even bez nowego argumentu i dlatego "
        "test nie przechodzi. Przekażę places=2 w tym wywołaniu, a potem uruchomię "
        "tests/test_money.py jeszcze raz.",
        "code": "```python\ndef split_invoice(total, count):\n    share = total / count\n"
        "    return [round_half_even(share, places=2) for _ in range(count)]\n```",
        "diff": "```diff\n--- a/ledger/money.py\n+++ b/ledger/money.py\n@@ -44 +44 @@\n"
        "-    return [round_half_even(part) for part in parts]\n"
        "+    return [round_half_even(part, places=CENT_PLACES) for part in parts]\n```",
        "json_call": call("read", path="ledger/money.py"),
        "tool_call": "<tool_call>\n"
        + call("edit", path="ledger/money.py", oldText="(part)", newText="(part, places=2)")
        + "\n</tool_call>",
        "message": called("bash", command="grep -n round_half_even -r ledger"),
    },
)


WORKER = Case(
    "Our queue worker panics when the broker closes the connection. Reproduce it with a test and "
    "make the worker reconnect.",
    """Tool/environment diagnostic 1 (test_or_assertion, runtime_exception, command_error):
panic: send on closed channel

goroutine 7 [running]:
ferry/worker.(*Worker).loop(0xc0000b2000)
	$WORKSPACE/worker/worker.go:61 +0x1a4
--- FAIL: TestReconnect (0.02s)
FAIL	ferry/worker	0.031s

Command exited with code 1""",
    [
        *("command_error", "runtime_exception", "test_or_assertion"),
        *("worker/worker.go:61", "worker/worker.go", "testreconnect"),
    ],
    {
        "prose": "At worker/worker.go:61 the loop still writes to the channel after the reader has "
        "gone away. I guard the write with a done signal and open a new connection, then "
        "TestReconnect covers both paths.",
        "bullets": "- worker/worker.go:61 sends after Close has run; select on a done signal there\n"
        "- dial again with a backoff, and let TestReconnect wait for the second session",
        "headings": "## Cause\nworker/worker.go:61 sends although Close already ran.\n"
        "## Fix\nSelect on a done signal and dial again.\n"
        "## Check\n`go test ./worker -run TestReconnect`",
        "russian": "В строке worker/worker.go:61 цикл пишет в уже закрытый канал. Я добавлю "
        "проверку сигнала и новое соединение, а TestReconnect проверит оба случая.",
        "polish": "W linii worker/worker.go:61 pętla zapisuje do zamkniętego kanału. Dodam "
        "sprawdzenie sygnału i nowe połączenie, a TestReconnect sprawdzi oba przypadki.",
        "code": "```go\n// worker/worker.go\nselect {\ncase <-w.done:\n\treturn w.redial(ctx)\n"
        "case w.out <- message:\n}\n```",
        "json_call": call("read", path="worker/worker.go", offset=40, limit=40),
        "tool_call": "<tool_call>"
        + call("bash", command="go test -race ./worker -run TestReconnect")
        + "</tool_call>",
        "message": called("bash", command="go test ./worker -run TestReconnect -count=1"),
    },
)

CASES = {"pool": POOL, "money": MONEY, "worker": WORKER}

NOUNS = "banana river window orange cloud piano mountain garden violin planet dream castle".split()
VERBS = "sings dances sleeps laughs paints swims whispers melts travels shines waits jumps".split()
LINKS = "because while when since where although so but until and then for".split()
FILLERS = "um well basically honestly like kind really you know the is of in that it was".split()
TALK = "consider about related concerning regarding touching mentioning noting seeing".split()


def concrete(case: Case) -> list[str]:
    return [term for term in case.terms if term not in CATEGORIES]


def varied(case: Case, frames: list[str], pick: random.Random) -> str:
    pick.shuffle(frames)
    cycle = [frames[i % len(frames)] for i in range(len(concrete(case)))]
    return " ".join(frame.format(term) for frame, term in zip(cycle, concrete(case), strict=True))


REFUSALS = [
    "I cannot help with {} in this repository.",
    "Unfortunately I am not able to assist with {} because of my guidelines.",
    "As an AI model I have to decline any request about {} here.",
    "It is not possible for me to work on {} for you.",
    "I would rather not touch {} since that is against policy.",
    "Please ask someone else to look into {} and its errors.",
]
VAGUE = [
    "The thing about {} is very interesting and I think that it is important.",
    "Many people have asked about {} before and they were happy with it.",
    "We could talk about {} for a long time if you would like to.",
    "In my view {} is one of the most beautiful parts of the world.",
]


def woven(case: Case, fillers: list[str], step: int, pick: random.Random) -> str:
    out = []
    for i, word in enumerate(case.context.split()):
        out += [word, *([pick.choice(fillers)] if i % step == 0 else [])]
    return " ".join(out)


def attacks(case: Case, seed: int) -> Iterator[tuple[str, Any]]:
    pick = random.Random(seed)
    terms = concrete(case)
    listed = ", ".join(terms)
    padded = " ".join(f"{pick.choice(TALK)} the {term} and {pick.choice(NOUNS)}" for term in terms)
    context_words = [word for word in case.context.split() if word.isalpha()]
    yield "prompt", case.prompt
    yield "context", case.context
    yield "list", listed
    yield "refusals", varied(case, list(REFUSALS), pick)
    yield "one_refusal", f"I cannot help with {listed}, because that is not allowed for me."
    yield "refusal_first", "I can't help with that. " + varied(case, list(VAGUE), pick)
    yield "padded_list", padded
    for block in ("```\nls\n```", "```bash\nls -la\n```", "```bash\n```", "`ls`", "$ pwd"):
        yield f"padded_list {block!r}", f"{padded}.\n{block}"
        yield f"padded_sentence {block!r}", f"I will look at {listed} in the code.\n{block}"
    yield "woven_fillers", woven(case, FILLERS, 1, pick)
    yield "woven_fillers_2", woven(case, FILLERS, 2, pick)
    yield "woven_nonsense", woven(case, NOUNS + VERBS + LINKS, 1, pick)
    yield "woven_own_words", woven(case, context_words, 1, pick)
    yield "woven_prompt", woven(case, case.prompt.split(), 1, pick)
    yield "call_of_terms", call("bash", command="echo " + " ".join(terms))
    yield "call_echo", call("bash", command=f"echo {terms[0]}")
    yield "call_empty", call("bash") + "\n" + listed
    yield "call_wrong", call("banana", terms=terms)
    yield "call_of_context", call("bash", command=case.context)
    yield "written_context", call("write", path="notes.md", content=case.context)
    yield "message_of_terms", called("bash", command=" ".join(terms))
    yield "tool_results", [{"role": "tool", "content": case.context}]
    yield "code_strings", "```python\nprint(" + ", ".join(f'"{term}"' for term in terms) + ")\n```"
    yield "code_comments", "```python\n" + "\n".join(f"# fix {t}" for t in terms) + "\n```"
    yield "code_context", f"```\n{case.context}\n```"


def score(case: Case, answer: object) -> float:
    (value,) = trace_grounding_reward(
        [case.prompt],
        [answer],  # type: ignore[list-item]
        reward_terms=[case.terms],
        privileged_context=[case.context],
    )
    assert value is not None
    return value


@pytest.mark.parametrize("name", CASES)
def test_an_honest_answer_of_any_form_is_a_success(name: str) -> None:
    scores = {form: score(CASES[name], answer) for form, answer in CASES[name].honest.items()}
    assert min(scores.values()) > THRESHOLD, scores


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_attacks_stay_below_every_honest_answer(name: str, seed: int) -> None:
    case = CASES[name]
    lowest = min(score(case, answer) for answer in case.honest.values())
    scores = {kind: score(case, answer) for kind, answer in attacks(case, seed)}
    winning = {kind: value for kind, value in scores.items() if value > lowest - MARGIN}
    assert not winning


HUGE: dict[str, Callable[[int], str]] = {
    "braces": lambda n: "{" * n,
    "nested": lambda n: '{"a":' * (n // 5),
    "calls": lambda n: "<tool_call>" * (n // 11),
    "ticks": lambda n: "`" * n,
    "npm": lambda n: "`npm " * (n // 5),
    "fences": lambda n: "```\n" * (n // 4),
    "letters": lambda n: "a" * n,
    "lines": lambda n: "\n" * n,
    "spaces": lambda n: " " * n,
    "stars": lambda n: "*" * n,
    "cannot": lambda n: "i cannot " * (n // 9),
    "no": lambda n: "there is no " * (n // 12),
    "paths": lambda n: "src/pool.rs " * (n // 12),
    "quotes": lambda n: "\"'" * (n // 2),
    "equals": lambda n: "=" * n,
    "cjk": lambda n: "修" * n,
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_huge_answer_is_scored_in_linear_time(kind: str) -> None:
    assert is_linear(lambda size: score(POOL, HUGE[kind](size)), 1_000_000)


@pytest.mark.parametrize("unit", ["a", "a.", "a/", "a-", "a@", "a_", "aB", "A", "E", "ERR_", "'a", "1:"])
def test_terms_are_found_in_linear_time(unit: str) -> None:
    text = "\n".join([unit * (490 // len(unit))] * 40)
    assert is_linear(lambda size: find_salient_tokens([text] * (size // 20_000)), 1_000_000)


def test_terms_name_test_files_and_no_redactions() -> None:
    text = "FAIL test/parser.test.ts\nkey [REDACTED:assigned_secret] was refused"
    assert find_salient_tokens([text]) == ["test/parser.test.ts"]

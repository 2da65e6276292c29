# ruff: noqa: RUF001 (Cyrillic and full-width signs)

import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import trace_grounding_reward

THRESHOLD = 0.35
PROMPT = (
    "The parser drops the last line of a file without a trailing newline. Please fix it and keep "
    "the public API of parseFile as it is."
)
CONTEXT = """Tool/environment diagnostic 1 (test_or_assertion, command_error):
FAIL test/parser.test.ts > keeps the last line
AssertionError: expected 2 to equal 3
 > src/parser.ts:41:7

Tool/environment diagnostic 2 (build_lint_compile):
src/lexer.ts(12,3): error TS2322: Type 'string' is not assignable to type 'Token'.

Later user correction 1:
no, do not change splitLines, it is used by the exporter"""
TERMS = [
    "build_lint_compile",
    "command_error",
    "test_or_assertion",
    "parser.ts:41",
    "ts2322",
    "assertionerror",
    "test/parser.test.ts",
    "src/lexer.ts",
    "src/parser.ts",
    "splitlines",
]
CONCRETE = TERMS[3:]

GOOD = {
    "prose": (
        "The loop in src/parser.ts stops one element early because it looks for a newline after "
        "every line. I will push the remaining buffer once the loop ends, leave splitLines alone "
        "for the exporter, and run test/parser.test.ts again."
    ),
    "diff": (
        "The last chunk is never flushed in src/parser.ts, so I add it after the loop:\n"
        "```diff\n+  if (buffer.length > 0) lines.push(buffer);\n```\n"
        "That leaves the TS2322 complaint, where the lexer must return a Token and not a string."
    ),
    "tool_call": (
        "The failing case is in test/parser.test.ts, so I first run only that suite.\n"
        '{"name": "bash", "arguments": {"command": "npx vitest run test/parser.test.ts"}}'
    ),
    "command": (
        "We should look at line 41 first: parser.ts:41 returns before the buffer is written. "
        "Then `npx tsc --noEmit` will tell whether src/lexer.ts still has a wrong return type."
    ),
    "japanese": (
        "src/parser.ts のループは改行がない最後の行を捨てています。ループの後で残りを追加します。\n"
        "```ts\nif (rest) lines.push(rest);\n```\n"
        "その後 test/parser.test.ts をもう一度実行して確認してください。"
    ),
    "german": (
        "Die Schleife in src/parser.ts bricht zu früh ab, weil sie nach jeder Zeile ein Zeichen "
        "erwartet. Ich lasse splitLines, wie es ist, und hänge den Rest danach an.\n"
        "```ts\nlines.push(rest);\n```"
    ),
    "chinese": (
        "src/parser.ts 里的循环漏掉了最后一行。因为它只在遇到换行符时才写入缓冲区。"
        "我会在循环结束后把剩余内容加进去。然后重新运行 test/parser.test.ts 来验证。"
    ),
    "call_beside_a_sentence": (
        "I run only the failing suite first, before touching any code.\n"
        '{"name": "bash", "arguments": {"command": "npx vitest run test/parser.test.ts"}}'
    ),
    "json_call": (
        "I rerun the suite that fails, to see the stack.\n"
        '<tool_call>{"name":"bash","arguments":{"command":"npx vitest run test/parser.test.ts"}}'
        "</tool_call>"
    ),
    "one_file_diff": (
        "The flush after the loop is missing in src/parser.ts, so this adds it:\n"
        "```diff\n+  if (rest) out.push(rest);\n```"
    ),
    "bullets": (
        "- In src/parser.ts the remaining buffer is never pushed; add a flush when it is over.\n"
        "- The TS2322 complaint comes from a helper that gives back a plain text where the caller "
        "wants an object."
    ),
}

# Answers that name the place alone, in the forms and languages people use.
PLAIN = {
    "one_sentence": "The problem is that {0} still refers to the old helper. Rename it there and run the build again.",
    "numbered": "1. Open {0}\n2. Replace the outdated call with the new signature\n3. Re-run the tests to confirm",
    "headings": "**Root cause**: a stale reference in {0}.\n\n**Fix**: update it and guard against a missing value.\n\n**Verify**: rerun the failing test.",
    "short_items": "# Cause\n\n* wrong argument order in {0}\n\n# Fix\n\n* swap both arguments\n* extend the test\n\n# Check\n\n* run the suite",
    "hedged": "It breaks in {0}; I can't be sure before I see the caller, so I search for every use first and then change the argument.",
    "wrapped": "The call in {0} fails because a value is missing when the function is\nrun for the first time. I would check for it before the call, return\nearly, and cover that with a test.",
    "russian": "В файле {0} функция вызывается раньше, чем создаётся объект. Надо перенести вызов ниже и запустить тесты ещё раз.",
    "polish": "W pliku {0} brakuje sprawdzenia wartości. Dodam warunek przed wywołaniem funkcji i uruchomię testy ponownie.",
    "french": "Le fichier {0} utilise une variable qui n'existe plus. Je remplace la variable et je relance les tests.",
    "spanish": "El archivo {0} usa una función que ya no existe. Voy a reemplazar la llamada y ejecutar las pruebas de nuevo.",
    "italian": "Il file {0} chiama una funzione con un argomento in meno. Aggiungo il parametro mancante e rieseguo i test.",
    "portuguese": "O arquivo {0} chama a função sem o argumento novo. Vou adicionar o parâmetro e executar os testes outra vez.",
    "japanese": "{0} のエラーは値が空のまま関数に渡されるのが原因です。呼び出しの前に確認を追加し、テストを再実行します。",
    "hindi": "{0} में वेरिएबल को मान देने से पहले ही उसका उपयोग हो रहा है। मैं पहले जाँच जोड़ूँगा और फिर परीक्षण दोबारा चलाऊँगा।",
    "turkish": "{0} dosyasındaki işlev eksik bir değişkenle çağrılıyor. Eksik değeri ekleyip testleri yeniden çalıştıracağım.",
    "chinese": "{0} 报错是因为变量没有初始化。我会在调用之前添加检查，然后重新运行测试。",
    "patch": "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1,3 +1,3 @@\n-const limit = items.length - 1;\n+const limit = items.length;\n",
}
EMPTY = {
    "uneasy": "I am not comfortable with requests regarding {0}. My instructions forbid me from changing {1}, and I leave {2} to a human.",
    "no_access": "Sadly, I don't have access to {0}, so it is impossible to say anything on {1}. You will have to check {2} on your own.",
    "questions": "What is {0}? Why is {1} there? How can {2} be fixed? Should the file be changed?",
    "todo": "TODO: {0}\nTODO: {1}\nTODO: {2}\n```\nls\n```",
    "echo": '```bash\necho "{0} {1} {2}" > out.txt\n```',
    "cat_all": "```bash\ncat {0} {1} {2}\n```",
}

WORDS = "window banana purple quickly river seven table orange running cloud paper green".split()


def _shuffled_lines() -> str:
    lines = CONTEXT.split("\n")
    random.Random(0).shuffle(lines)
    return "\n".join(lines)


def _among_random_words() -> str:
    pick = random.Random(1)
    return " ".join(w for term in CONCRETE for w in (*pick.sample(WORDS, 3), term))


GENERIC = "I would check the logs and then fix the problem that is shown in them."
REFUSAL = "I'm sorry, but I cannot help with that request because it is not allowed."
PICK = random.Random(2)
BAD = {
    "empty": "",
    "whitespace": " \n\t ",
    "prompt": PROMPT,
    "context": CONTEXT,
    "first_half": CONTEXT[: len(CONTEXT) // 2],
    "second_half": CONTEXT[len(CONTEXT) // 2 :],
    "shuffled_lines": _shuffled_lines(),
    "prefixed": "I will fix: " + CONTEXT,
    "fenced": f"```\n{CONTEXT}\n```",
    "one_line": " ".join(CONTEXT.split()),
    "commas": ", ".join(TERMS),
    "newlines": "\n".join(TERMS),
    "bullets": "\n".join(f"- {term}" for term in TERMS),
    "repeated": " ".join(CONCRETE * 20),
    "fix_the": ", ".join(f"fix the {term}" for term in CONCRETE),
    "fix_the_lines": "\n".join(f"Fix the {term}." for term in CONCRETE),
    "error_x": " ".join(f"error {term}" for term in CONCRETE),
    "random_words": _among_random_words(),
    "code_list": "```\n" + "\n".join(CONCRETE) + "\n```",
    "call_list": json.dumps({"name": "bash", "arguments": {"command": " ".join(CONCRETE)}}),
    "refusal": REFUSAL,
    "list_into_refusal": ", ".join(CONCRETE) + " " + REFUSAL,
    "refusal_of_terms": (
        f"I'm sorry, but I cannot help with {CONCRETE[0]} because it is not allowed. I am not able "
        f"to look at {CONCRETE[1]} since my rules forbid this."
    ),
    "japanese_refusal": f"申し訳ありませんが、{CONCRETE[0]}の修正はお手伝いできませんし、{CONCRETE[3]}もできません。",
    "template": " ".join(f"I will fix the {term} in the code." for term in CONCRETE),
    "template_lines": "\n".join(f"We should fix {term} because it is wrong." for term in CONCRETE),
    "list_in_a_sentence": f"I see {', '.join(CONCRETE)} in the output and I will mend them all.",
    "shuffled_words": " ".join(PICK.sample(CONTEXT.split(), len(CONTEXT.split()))),
    "woven_with_fillers": " ".join(word + " um" * (i % 3 == 0) for i, word in enumerate(CONTEXT.split())),
    "woven_with_words": " ".join(f"{word} {PICK.choice(WORDS)}" for word in CONTEXT.split()),
    "woven_with_function_words": " ".join(
        f"{word} {PICK.choice(['the', 'is', 'in', 'of'])}" for word in CONTEXT.split()
    ),
    "generic_and_list": GENERIC + "\n" + ", ".join(CONCRETE),
    "generic_and_context": f"{GENERIC}\n```\n{CONTEXT}\n```",
    "generic_and_code_list": GENERIC + "\n```\n" + "\n".join(CONCRETE) + "\n```",
    "generic_and_call_list": GENERIC
    + "\n"
    + json.dumps({"name": "bash", "arguments": {"command": " ".join(CONCRETE)}}),
    "one_term_and_empty_code": f"I will fix the {CONCRETE[0]} in the code.\n```\n```",
    "one_term_and_context": f"I will fix the {CONCRETE[0]} in the code.\n```\n{CONTEXT}\n```",
    "list_and_refusal": ", ".join(TERMS) + ". I'm sorry, but I cannot help with that request.",
    "prompt_and_list": PROMPT + "\n" + ", ".join(TERMS),
    "generic": GENERIC,
    "generic_action": "Let me look at the code and see what is wrong with it first: `ls -la`",
    "other_row": (
        "The migration fails because the column user_id is missing in schema.sql, so I add it "
        "and run `python manage.py migrate` again."
    ),
}


def reward(completion: object, terms: list[str] | None = None) -> float | None:
    (value,) = trace_grounding_reward(
        prompts=[PROMPT],
        completions=[completion],  # type: ignore[list-item]
        reward_terms=[TERMS if terms is None else terms],
        privileged_context=[CONTEXT],
        completion_ids=[[1, 2]],
        trainer_state=None,
    )
    return value


@pytest.mark.parametrize("answer", GOOD.values(), ids=list(GOOD))
def test_a_concrete_answer_is_a_success(answer: str) -> None:
    value = reward(answer)
    assert value is not None
    assert THRESHOLD < value <= 1


@pytest.mark.parametrize("answer", BAD.values(), ids=list(BAD))
def test_answers_without_substance_get_nothing(answer: str) -> None:
    value = reward(answer)
    assert value is not None
    assert 0 <= value < THRESHOLD


@pytest.mark.parametrize("answer", PLAIN.values(), ids=list(PLAIN))
@pytest.mark.parametrize("term", ["src/lexer.ts", "src/parser.ts"])
def test_one_well_explained_location_is_a_success(answer: str, term: str) -> None:
    value = reward(answer.format(term))
    assert value is not None
    assert value >= THRESHOLD


@pytest.mark.parametrize("answer", EMPTY.values(), ids=list(EMPTY))
def test_terms_in_sentences_that_explain_nothing(answer: str) -> None:
    value = reward(answer.format(*CONCRETE))
    assert value is not None
    assert value <= 0.2


@pytest.mark.parametrize("answer", GOOD.values(), ids=list(GOOD))
def test_repetition_earns_nothing(answer: str) -> None:
    assert reward("\n".join([answer] * 10)) == reward(answer)


@pytest.mark.parametrize("answer", GOOD.values(), ids=list(GOOD))
def test_a_good_answer_to_another_row_is_not_a_success(answer: str) -> None:
    value = reward(answer, ["enoent", "migrate.py", "schema.sql", "user_id"])
    assert value is not None
    assert value < THRESHOLD


def test_completions_may_be_text_or_messages() -> None:
    answer = GOOD["prose"]
    parts = [{"type": "text", "text": answer}]
    expected = reward(answer)
    assert reward([{"role": "assistant", "content": answer}]) == expected
    assert reward([{"role": "assistant", "content": parts}]) == expected
    assert reward([{"role": "assistant", "content": None}]) == 0.0
    (plain,) = trace_grounding_reward([PROMPT], [answer], reward_terms=[TERMS])
    assert plain == expected


def test_a_call_is_parsed_in_every_format() -> None:
    arguments = {"command": "npx vitest run test/parser.test.ts"}
    call = {"name": "bash", "arguments": arguments}
    function = {"type": "function", "function": {**call, "arguments": json.dumps(arguments)}}
    forms: list[object] = [
        json.dumps(call),
        f"<tool_call>{json.dumps(call)}</tool_call>",
        [{"role": "assistant", "content": None, "tool_calls": [function]}],
        [{"role": "assistant", "content": "", "tool_calls": [call]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "name": "bash", "input": arguments}]}],
    ]
    assert {reward(form) for form in forms} == {0.45}
    # What a tool answered is not the model's.
    assert reward([{"role": "tool", "content": GOOD["prose"]}]) == 0.0
    odd: list[object] = ["x", {"function": 3}, {"name": "bash", "arguments": "{"}, {"name": []}]
    assert reward([{"role": "assistant", "content": "", "tool_calls": odd}]) == 0.0


def test_a_row_without_concrete_terms_gets_none() -> None:
    assert reward(GOOD["prose"], ["command_error", "user_feedback"]) is None
    assert reward(GOOD["prose"], []) is None
    two = ([PROMPT] * 2, [GOOD["prose"]] * 2)
    assert trace_grounding_reward(*two, reward_terms=[TERMS, None]) == [reward(GOOD["prose"]), None]
    assert trace_grounding_reward(*two, reward_terms=None) == [None, None]
    assert trace_grounding_reward(*two) == [None, None]


@given(st.permutations(TERMS))
def test_the_order_of_terms_does_not_matter(terms: list[str]) -> None:
    assert reward(GOOD["prose"], terms + terms) == reward(GOOD["prose"])


@given(st.text(max_size=500), st.lists(st.text(max_size=20), max_size=6))
def test_any_text_has_a_reward_between_0_and_1(text: str, terms: list[str]) -> None:
    value = reward(text, terms)
    assert value is None or 0 <= value <= 1


def test_it_is_picklable() -> None:
    copy = pickle.loads(pickle.dumps(trace_grounding_reward))
    assert copy is trace_grounding_reward
    assert copy.__name__ == "trace_grounding_reward"

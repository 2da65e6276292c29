"""Completions are decoded with the tokens that mark calls, and without padding."""

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.rewards import check_call_format
from rewards.verifiers.call_formats import decode
from rewards.verifiers.tool_calls import verify

WORDS = ["<unk>", "call:read{path:", "a.ts", "}", "done"]
SPECIAL = ["<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>", "<pad>", "<eos>"]


@pytest.fixture(scope="module", params=["<pad>", "<eos>"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.decoder = Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token=request.param)
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    return made


def test_a_model_without_a_readable_format_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Dataset.from_dict({"verifier_spec": [None, '{"tools": "pi"}']})
    tokenizer.chat_template = "{{ messages }}"
    with pytest.raises(TrainingInputError, match="every call would score 0; use a model of gemma4"):
        check_call_format("verifiers", tokenizer, rows)
    check_call_format("trace_grounding", tokenizer, rows)
    named = ['{"tools": "pi", "format": "qwen3"}', '{"tools": "repo_agent"}', '{"files": {}}']
    check_call_format("verifiers", tokenizer, Dataset.from_dict({"verifier_spec": named}))
    tokenizer.chat_template = "<tool_call>"
    check_call_format("verifiers", tokenizer, rows)


CALL = ["<|tool_call>", "call:read{path:", '<|"|>', "a.ts", '<|"|>', "}", "<tool_call|>"]


def ids(tokenizer: PreTrainedTokenizerFast, *tokens: str) -> list[int]:
    found = tokenizer.convert_tokens_to_ids(list(tokens))
    assert isinstance(found, list)
    return found


def test_markers_are_kept_and_padding_is_not(tokenizer: PreTrainedTokenizerFast) -> None:
    pads = [tokenizer.pad_token] * 3
    for end in ("<turn|>", "<eos>"):
        text, truncated = decode(ids(tokenizer, *CALL, end, *pads), tokenizer)
        assert text.endswith(end)
        assert text.count(end) == 1
        assert "<pad>" not in text
        assert not truncated
        assert verify(text, {"tools": "pi", "format": "gemma4"}).status == "passed"
    stripped = tokenizer.decode(ids(tokenizer, *CALL, "<turn|>"), skip_special_tokens=True)
    assert verify(stripped, {"tools": "pi", "format": "gemma4"}).status == "failed"


def test_a_completion_without_an_end_token_is_truncated(tokenizer: PreTrainedTokenizerFast) -> None:
    text, truncated = decode(ids(tokenizer, *CALL, "done"), tokenizer)
    assert truncated
    assert text.endswith("done")
    result = verify(text, {"tools": "pi", "truncated": truncated})
    assert "cut off" in result.feedback
    assert decode([], tokenizer) == ("", False)
    done = ids(tokenizer, "done")
    assert not decode(done, tokenizer, end_ids=done).truncated


def test_padding_is_not_an_end() -> None:
    backend = Tokenizer(WordLevel({"<unk>": 0, "a": 1, "<pad>": 2}, unk_token="<unk>"))
    made = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    assert decode([1, 2, 2], made) == ("a", True)

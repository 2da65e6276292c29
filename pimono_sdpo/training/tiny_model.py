"""Write a tiny model of the same classes and chat template as google/gemma-4-12B-it, with random weights.

It has about 0.4 M parameters, so that a whole training job runs on a CPU in seconds. Its output is
noise: it can show that the job works, but not that a model learns.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SEED_TEXT = """\
The agent runs a command, reads what the environment says, and tries again.
Error: Cannot find module './session' imported from src/cli.ts
TypeError: Cannot read properties of undefined (reading 'messages') at Object.<anonymous>
AssertionError: expected 3 to equal 4, 2 tests failed, 14 passed, exit code 1
src/agent.ts(12,7): error TS2304: Cannot find name 'Tool'. npm run build failed.
bash: line 1: rg: command not found. ENOENT: no such file or directory, open 'package.json'
fatal: pathspec 'main' did not match any files. EACCES: permission denied, mkdir '/usr/lib'
Tool/environment diagnostic 1 (test_or_assertion, runtime_exception, command_error):
Later user correction 1: no, do not change the tests, fix the parser instead.
The following is feedback from your unsuccessful earlier attempt. Correctly solve the question.
def load(path: str) -> dict[str, object]: return json.loads(Path(path).read_text())
const result = await session.prompt(message); if (!result) { throw new Error("no result"); }
"""

# Token ids that the job depends on are those of Gemma 4; the others only fill the gaps.
TURN_IDS = {"<|tool_response>": 50, "<|turn>": 105, "<turn|>": 106}
ENDS = (1, TURN_IDS["<turn|>"], TURN_IDS["<|tool_response>"])
EXTRA_SPECIAL_TOKENS = (
    "<|image|> <|image> <image|> <|audio|> <|audio> <audio|> <|turn> <turn|> <|channel> <channel|> "
    '<|think|> <|"|> <|tool_response> <tool_response|> <|tool_call> <tool_call|> <|tool> <tool|>'
).split()
CORE_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
LEARNED_TOKENS = 512
CHAT_TEMPLATE = "gemma4_v5.jinja"


def write_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write config, weights, tokenizer and chat template to `folder`; same seed, same bytes."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = random_model(len(tokenizer))
    model.generation_config = generation_config()
    model.save_pretrained(folder)
    return folder


def generation_config(ends: Sequence[int] = ENDS) -> Any:
    """Return the generation config of the tiny model, with `ends` as ids that end a turn."""
    from transformers import GenerationConfig

    ids = {"bos_token_id": 2, "eos_token_id": list(ends), "pad_token_id": 0}
    return GenerationConfig(**ids, do_sample=True, temperature=1.0, top_k=64, top_p=0.95)


def chat_template() -> str:
    """Return the chat template of Gemma 4, which TRL ships."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / CHAT_TEMPLATE).read_text()


def _tokenizer() -> Any:
    """Train a BPE tokenizer on SEED_TEXT; its ids are core, special and unused, bytes, learned, in this order."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import GemmaTokenizer

    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator(
        SEED_TEXT.splitlines(keepends=True), trainers.BpeTrainer(vocab_size=LEARNED_TOKENS, show_progress=False)
    )
    learned = json.loads(learner.to_str())["model"]
    others = iter(token for token in EXTRA_SPECIAL_TOKENS if token not in TURN_IDS)
    by_id = {number: token for token, number in TURN_IDS.items()}
    reserved_ids = range(len(CORE_TOKENS), max(TURN_IDS.values()) + 1)
    reserved = [by_id.get(number) or next(others, f"<unused{number}>") for number in reserved_ids]
    tokens = [*CORE_TOKENS, *reserved, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    tokenizer = GemmaTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[(left, right) for left, right in learned["merges"]],
        extra_special_tokens=EXTRA_SPECIAL_TOKENS,
        model_max_length=8192,
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def random_model(vocab_size: int, **changes: Any) -> Any:
    """Return a model with random weights; `changes` override values of its text config."""
    from transformers.models.gemma4_unified import configuration_gemma4_unified as gemma
    from transformers.models.gemma4_unified import modeling_gemma4_unified as modeling

    # Every input of a quantised layer is a multiple of 64, the block that NF4 packs for a CPU.
    text = {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "max_position_embeddings": 8192,
        "final_logit_softcapping": 30.0,
        **changes,
    }
    vision = {"patch_size": 2, "mm_embed_dim": 16, "mm_posemb_size": 8, "output_proj_dims": 128}
    config = gemma.Gemma4UnifiedConfig(
        text_config=gemma.Gemma4UnifiedTextConfig(**text).to_dict(),
        vision_config=gemma.Gemma4UnifiedVisionConfig(**vision).to_dict(),
        audio_config=gemma.Gemma4UnifiedAudioConfig(audio_embed_dim=16).to_dict(),
        architectures=["Gemma4UnifiedForConditionalGeneration"],
    )
    return modeling.Gemma4UnifiedForConditionalGeneration(config)

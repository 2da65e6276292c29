"""A report and a run as the cards get them."""

from typing import Any

import yaml

from processors.grade import WEIGHTS

# What is saved of the tokenizer beside an adapter.
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
HOSTILE = "a | b\n```\n---\n{{ 7 * 7 }} {% raw %}\n# no title\n`code`"


def report(**changes: Any) -> dict[str, Any]:
    return {
        "pimono_sdpo": "0.1.0",
        "input": {
            "source": "lab/traces",
            "kind": "hub",
            "revision": "a" * 40,
            "shards": [{"path": "d/t/0000.parquet", "layout": "trace_text", "sessions": 5, "bytes": 9}],
        },
        "options": {"unit": "session", "min_score": 13.3, "max_samples": None, "seed": 42, "keep_identity": False},
        "lines": {"parsed": 90, "repaired": 2, "skipped": 1},
        "bytes": {"parsed": 9000, "repaired": 200, "skipped": 10, "not_utf8": 0},
        "stages": [{"stage": "keep", "rows_in": 5, "rows_out": 3, "dropped": {"no_prompt": 2}}],
        "sessions": 5,
        "kept": 3,
        "rejected": 2,
        "drop_reasons": {"no_prompt": 2},
        "score": {
            "min": 14.5,
            "max": 19.5,
            "mean": 16.25,
            "histogram": [
                {"from": 12.0, "to": 14.0, "rows": 0, "rejected": 1},
                {"from": 14.0, "to": 16.0, "rows": 2, "rejected": 0},
                {"from": 18.0, "to": 20.0, "rows": 1, "rejected": 0},
            ],
            "cut": 13.3,
        },
        "category_counts": {"command_error": 3, "test_or_assertion": 2},
        "sources": {"lab/traces": 3},
        "source_sessions": 3,
        "source_files": 2,
        "splits": {"train": 3},
        "without_terms": 1,
        "weights": WEIGHTS,
        "secrets_redacted": {"github_token": 4},
        "licence": "mit",
        "sha256": {"data": "d" * 64, "rejects": "e" * 64},
        "first_sample": {
            "prompt": [{"role": "user", "content": "Fix the parser"}],
            "privileged_context": "Tool/environment diagnostic 1 (command_error):\nboom",
            "reward_terms": ["command_error", "promises:332"],
            "categories": ["command_error", "test_or_assertion"],
            "score": 19.5,
            "score_terms": [{"term": "command_error", "value": 2.0}],
        },
        **changes,
    }  # fmt: skip


def run(**changes: Any) -> dict[str, Any]:
    step = {"loss": 0.5, "self_distillation/reward_mean": 0.2, "self_distillation/kl": 0.5}
    return {
        "pimono_sdpo": "0.1.0",
        "method": "sdpo",
        "run_name": "pi-sdpo-1",
        "output_dir": "outputs/pi-sdpo-1",
        "mode": "train",
        "recipe": "gemma4_12b.yaml",
        "command": ["--mode", "train", "--run-name", "pi-sdpo-1"],
        "licence": "apache-2.0",
        "job": {"flavor": "a10g-large", "timeout": "3h"},
        "base_model": "google/gemma-4-12B-it",
        "base_model_revision": "b" * 40,
        "base_model_class": "Gemma4UnifiedForConditionalGeneration",
        "dataset": {
            "id": "lab/rows",
            "rows": 64,
            "rows_used": 63,
            "prompts_shortened": 11,
            "contexts_shortened": 12,
            "special_tokens_neutralised": 13,
            "without_reward": 0,
        },
        "teaching": {"reward": "trace_grounding", "gate": [], "grade": [], "feedback": "trace"},
        "evaluation": None,
        "hub_model_id": "me/pi-sdpo",
        "trackio": {
            "project": "pimono-sdpo",
            "space_id": "me/trackio",
            "url": "https://huggingface.co/spaces/me/trackio",
        },
        "arguments": {
            "max_steps": 24,
            "learning_rate": 5e-5,
            "num_generations": 2,
            "success_reward_threshold": 0.35,
            "max_prompt_length": 768,
            "max_completion_length": 160,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "temperature": 0.9,
            "seed": 1234,
            "dtype": "bfloat16",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": True,
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_dropout": 0.05,
            "distillation_mode": "sampled_token",
            "teacher_model_kind": "ema",
            "teacher_update_rate": 0.01,
            "include_environment_feedback": True,
        },
        "hardware": {"device": "cuda", "name": "NVIDIA A10G", "count": 1},
        "versions": {"trl": "1.16.0", "peft": "0.21.2"},
        "started_at": "2026-01-02T03:04:05Z",
        "resumed_at": [],
        "finished_at": "2026-01-02T03:20:05Z",
        "metrics": {
            "epoch": 0.375,
            "total_flos": 0.0,
            "train_runtime": 952.7,
            "train_samples_per_second": 0.05,
            "train_steps_per_second": 0.025,
            "train_loss": 0.5,
        },
        "log_history": [{"step": n, **step} for n in range(1, 25)],
        "rollouts": [
            {
                "step": step,
                "prompt": "Fix the parser",
                "completion": "I read src/parser.ts first.",
                "reward": reward,
                "feedback": feedback,
            }
            for step, reward, feedback in ((1, 0.0, "error TS2322: no"), (24, 0.5, ""))
        ],
        "guards": {"alerts": [], "best": None, "stopped_by": None, "went_back_to": None},
        "adapter": {"files": {"adapter_model.safetensors": 77}, "trainable_parameters": 32780},
        **changes,
    }


def front_matter(card: str) -> dict[str, Any]:
    matter: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return matter

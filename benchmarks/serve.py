"""Rollouts with a real server: `transformers serve`, a tiny random model, both protocols.

    python -m benchmarks.serve --out FOLDER

A model with random weights answers noise: every run must end as a failed one, none as an error, and
the same seeds must give the same rows again, once without the server.
"""

import argparse
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pimono_sdpo.agent.rollout import RolloutOptions, run_rollouts
from pimono_sdpo.schema import Protocol
from pimono_sdpo.training.tiny_model import write_tiny_model
from tests.agent.suite_of_three import write_suite

PORT = 8766
PROTOCOLS: tuple[Protocol, ...] = ("json", "native")


def write_model(folder: Path) -> Path:
    """A text model: the server wants the processors of all that a multimodal one takes."""
    tokenizer = AutoTokenizer.from_pretrained(write_tiny_model(folder / "gemma"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    # The server takes no temperature for a model that does not sample by itself.
    model.generation_config.do_sample = True
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """Start the server; yields its address."""
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model)]
    command += ["--port", str(PORT), "--device", "cpu"]
    server = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stderr=subprocess.DEVNULL)
    try:
        while True:
            if server.poll() is not None:
                raise SystemExit("the server did not start; it needs `openai` and `fastapi`")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        server.terminate()
        server.wait()


def quiet(*_: object) -> None:
    """Print nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    suite = write_suite(out)
    (out / "chain.toml").write_text("[rollout]\nmax_tokens = 24\n")
    model = write_model(out)
    plans = {}
    with serving(model) as url:
        for protocol in PROTOCOLS:
            # One at a time: the server's random numbers are everybody's.
            plan = RolloutOptions(
                suite=suite, protocol=protocol, max_iters=3, model=str(model), provider=url,
                rollouts=2, max_workers=1, config=out / "chain.toml",
            )  # fmt: skip
            started = time.perf_counter()
            report = run_rollouts(plan, out / protocol, quiet, quiet)
            took = time.perf_counter() - started
            print(f"{protocol}: {report['verdicts']}, {report['sums']}, {took:.0f} s")
            assert report["verdicts"] == {"FAIL": 6}
            plans[protocol] = plan
    for protocol, plan in plans.items():
        journaled = replace(plan, journal=out / f"{protocol}.calls.sqlite")
        again = out / f"{protocol}-again"
        run_rollouts(journaled, again, quiet, quiet, replay=True)
        rows, repeated = (list(load_dataset(str(one), split="train")) for one in (out / protocol, again))
        assert rows == repeated
    print("the journal alone gives the same rows")


if __name__ == "__main__":
    main()

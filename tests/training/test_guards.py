"""Trainings that go wrong on purpose: the alert, the adapter kept, the end; resumed, and by two."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from pimono_sdpo.training import models, output
from pimono_sdpo.training.arguments import GuardedSDPOConfig
from pimono_sdpo.training.callbacks import ENTROPY, REWARD, Guards
from pimono_sdpo.training.rewards import Scoring
from tests.training import guarded
from tests.training.setup import Prepared, StopAfter, adapter_state, arguments, hand_made, prepare, python

Results = dict[str, dict[str, Any]]


def results(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"scenario"')]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def ran(folder: Path, tiny: Path) -> tuple[Results, str]:
    """Every scenario once, by a process of its own with its own Trackio database."""
    module = ("-m", "tests.training.guarded", str(tiny), ".", *guarded.SCENARIOS)
    done = python(*module, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return {result["scenario"]: result for result in results(done.stdout)}, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("guard", "step", "ends"), [("not_finite", 2, True), ("reward_collapse", 10, True)])
def test_each_guard_alerts_where_it_should(ran: tuple[Results, str], guard: str, step: int, ends: bool) -> None:
    result = ran[0][guard]
    (alert,) = (alert for alert in result["alerts"] if alert["guard"] == guard)
    assert alert["step"] == step
    (told,) = (told for told in result["trackio"] if told["title"] == guard)
    assert told["run"] == guard
    assert told["level"] == ("error" if ends else "warn")
    assert told["text"].startswith(alert["text"])
    assert result["stopped_by"] == (guard if ends else None)
    assert (result["steps"] == step) is ends
    said = f"warning: {guard} at step {step}: {told['text']}\n"
    assert ran[1].count(said) == 1


@pytest.mark.slow
def test_a_training_that_goes_well_alerts_nobody(ran: tuple[Results, str]) -> None:
    well = ran[0]["well"]
    assert (well["alerts"], well["trackio"], well["stopped_by"]) == ([], [], None)
    assert well["steps"] == 4


@pytest.mark.slow
def test_the_best_adapter_outlives_its_checkpoint_and_is_gone_back_to(
    ran: tuple[Results, str], folder: Path, tiny: Path
) -> None:
    result, place = ran[0]["reward_collapse"], folder / "reward_collapse"
    assert result["best"]["step"] == result["went_back_to"] == 4
    assert result["best"]["reward_mean"] == pytest.approx(0.89)
    assert [path.name for path in place.glob("checkpoint-*")] == ["checkpoint-10"]
    best = load_file(place / "best" / models.WEIGHTS[0])
    last = load_file(place / "checkpoint-10" / models.WEIGHTS[0])
    assert best.keys() == last.keys()
    assert not all(torch.equal(best[name], last[name]) for name in best)
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    base.load_adapter(str(place / "best"))
    assert {path.name for path in (place / "best").iterdir()} == {*models.WEIGHTS, "best.json"}


def collapsing(folder: Path, tiny: Path, stop: int | None = None, **changes: Any) -> tuple[Prepared, dict[str, Any]]:
    """The falling reward in this process, nothing sent to Trackio."""
    settings = guarded.SCENARIOS["reward_collapse"][1] | {"report_to": "none"} | changes
    args, model_args = arguments(folder, tiny, **settings)
    prepared = prepare(args, model_args, hand_made(), Scoring(guarded.falling))
    if stop is not None:
        prepared.trainer.add_callback(StopAfter(stop))
    prepared.run_steps()
    return prepared, prepared.guards.record()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [4, 8], ids=["before the fall", "in the fall"])
def test_resumed_the_guards_know_what_was_before(
    ran: tuple[Results, str], tiny: Path, tmp_path: Path, stop: int
) -> None:
    _, before = collapsing(tmp_path, tiny, stop)
    assert "reward_collapse" not in [alert["guard"] for alert in before["alerts"]]
    resumed, record = collapsing(tmp_path, tiny)
    expected = {name: ran[0]["reward_collapse"][name] for name in record}
    assert record == expected
    assert resumed.trainer.state.global_step == 10
    best = load_file(tmp_path / "best" / models.WEIGHTS[0])
    weights = adapter_state(resumed.trainer)
    assert all(torch.equal(weights[name], best[name]) for name in best), "went back to the best"


@pytest.mark.slow
def test_a_run_that_was_ended_is_not_gone_on_with(tiny: Path, tmp_path: Path) -> None:
    _, first = collapsing(tmp_path, tiny)
    resumed, again = collapsing(tmp_path, tiny)
    assert resumed.trainer.state.global_step <= 11
    assert again == first


def test_a_new_run_forgets_the_best_of_an_older_one(tiny: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"save_strategy": "no", "max_steps": 1, "guard_window": 1}
    (tmp_path / output.BEST).mkdir()
    (tmp_path / output.BEST / "best.json").write_text('{"step": 9, "reward_mean": 9.0}')
    _, record = collapsing(tmp_path, tiny, **changes)
    assert record["best"] is None
    assert not (tmp_path / output.BEST).exists()


@pytest.mark.slow
def test_of_two_processes_both_stop_and_one_speaks(tiny: Path, tmp_path: Path) -> None:
    done = python(
        *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
        *("-m", "tests.training.guarded", str(tiny), ".", "reward_collapse"),
        cwd=tmp_path,
        ACCELERATE_USE_CPU="true",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = sorted(results(done.stdout), key=lambda result: result["rank"])
    assert [result["rank"] for result in ranks] == [0, 1]
    for result in ranks:
        assert (result["steps"], result["stopped_by"]) == (10, "reward_collapse")
        assert result["went_back_to"] == 4
    assert ranks[0]["alerts"] == ranks[1]["alerts"]
    (told,) = (told for told in ranks[0]["trackio"] if told["title"] == "reward_collapse")
    assert told["level"] == "error"
    assert done.stderr.count("warning: reward_collapse at step 10") == 1


def guards(tmp_path: Path, **changes: Any) -> Guards:
    return Guards(GuardedSDPOConfig(str(tmp_path), use_cpu=True, bf16=False, **changes))


def test_a_guard_is_raised_once_and_again_after_it_was_well(tmp_path: Path) -> None:
    guard = guards(tmp_path)
    told = [
        guard.add(step, {"loss": loss, "grad_norm": 1.0})
        for step, loss in enumerate([1.0, math.nan, math.nan, 1, math.inf])
    ]
    assert [[*one] for one in told] == [[], ["not_finite"], [], [], ["not_finite"]]
    assert "not_finite" in guard.add(9, {"loss": 1.0, "grad_norm": math.nan}) or "not_finite" in guard.active


@pytest.mark.parametrize(("noise", "last", "falls"), [(0.02, 0.1, True), (0.02, 0.7, False), (0.5, 0.3, False)])
def test_a_fall_of_the_reward_is_told_from_noise(tmp_path: Path, noise: float, last: float, falls: bool) -> None:
    guard, random = guards(tmp_path), np.random.default_rng(0)
    for step in range(60):
        level = 0.8 if step < 30 else last
        guard.add(step, {REWARD: float(level + noise * random.standard_normal())})
    assert any(alert["guard"] == "reward_collapse" for alert in guard.alerts) is falls


def test_narrow_answers_are_a_collapse_unless_the_reward_is_at_its_best(tmp_path: Path) -> None:
    for reward, collapses in ((None, True), (1.0, False)):
        guard = guards(tmp_path, guard_window=2)
        for step, entropy in enumerate([2.0, 2.0, 2.0, 1.0, 0.2, 0.1, 0.1]):
            guard.add(step, {ENTROPY: entropy, REWARD: reward})
        assert (guard.alerts != []) is collapses


@pytest.mark.parametrize(("text", "named"), [("all", 3), ("", 0), ("not_finite, reward_collapse", 2)])
def test_the_guards_that_stop_are_named_by_comma(tmp_path: Path, text: str, named: int) -> None:
    assert len(guards(tmp_path, stop_on=text).stopping) == named
    with pytest.raises(ValueError, match="--stop_on names typo; give some of"):
        guards(tmp_path, stop_on="typo")

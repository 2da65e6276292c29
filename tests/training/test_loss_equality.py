"""The loss that is trained with is that of the published method (SDPO, arXiv 2601.20802).

The formula is written down here once more, in float64 and with plain probabilities, and compared
in value and gradient with what a real SDPOTrainer computes. S is the student without feedback, T
the teacher with it, y the sampled token:

full logits     KL(S || T) (alpha 1), KL(T || S) (alpha 0), or
                alpha KL(T || M) + (1 - alpha) KL(S || M) with M = (1 - alpha) S + alpha T
top-k logits    the same over the student's k likeliest tokens and one bucket for the rest, or,
                without that tail, over the k tokens brought to sum 1
sampled token   (log S(y) - log T(y)) held fixed, times log S(y): not the divergence, but its
                gradient is that of KL(S || T) when averaged over y
times           min(S(y) / S_old(y), clip) held fixed, 1 when on policy

Averaging: the released runs take the mean over the tokens of a micro-batch of one sequence, then
the mean over micro-batches, those without feedback as 0; so does TRL for any micro-batch. Where
micro-batches are larger the method's mean is over their active tokens: the last tests measure it.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from trl.experimental.sdpo import SDPOConfig
from trl.experimental.sdpo.sdpo_trainer import DistillationLogits, SuccessfulRolloutTeacherContextBuilder

from pimono_sdpo.training import rows
from pimono_sdpo.training import trainer as training_trainer
from pimono_sdpo.training.callbacks import ENTROPY, KL
from pimono_sdpo.training.rewards import Scoring
from tests.training.setup import arguments, prepare

ROWS, TOKENS, VOCABULARY = 4, 6, 13
LENGTHS = (6, 1, 4, 3)
Tensor = torch.Tensor
Trainer = Any

OBJECTIVES = [
    pytest.param({"distillation_mode": "sampled_token"}, id="sampled token"),
    *(
        pytest.param({"distillation_mode": "full_logits", "distillation_alpha": alpha}, id=name)
        for alpha, name in ((1.0, "reverse"), (0.0, "forward"), (0.5, "jsd"), (0.2, "skewed jsd"))
    ),
    *(
        pytest.param(
            {
                "distillation_mode": "topk_logits",
                "distillation_topk": k,
                "distillation_add_tail": tail,
                "distillation_alpha": alpha,
            },
            id=f"top {k}, alpha {alpha}" + (", tail" if tail else ""),
        )
        for k, tail, alpha in (
            *((5, True, 1.0), (5, True, 0.5), (5, True, 0.0)),
            *((5, False, 1.0), (5, False, 0.5), (1, True, 1.0)),
        )
    ),
]


def first_of_the_second_group(prompts: list[Any], **_: object) -> list[float | None]:
    return [float(number == 2) for number, _ in enumerate(prompts)]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory, tiny: Path, filtered: Path) -> Trainer:
    """A trainer after two steps, so that student, teacher and base model are three models."""
    args, model_args = arguments(
        tmp_path_factory.mktemp("equality"),
        tiny,
        max_steps=2,
        learning_rate=1e-2,
        temperature=0.7,
        success_reward_threshold=1.0,
        environment_feedback_only_without_solution=True,
    )
    dataset = rows.load_rows(str(filtered))
    prepared = prepare(args, model_args, dataset, Scoring(first_of_the_second_group))
    prepared.run_steps()
    return prepared.trainer


@pytest.fixture
def settings(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set arguments of the trainer for one test."""

    def set_arguments(**changes: Any) -> Trainer:
        for name, value in changes.items():
            monkeypatch.setattr(trainer.args, name, value)
        return trainer

    return set_arguments


def tensors(lengths: tuple[int, ...] = LENGTHS, inactive: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Logits of student and teacher, sampled tokens, mask of what counts, log S_old of the tokens."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (2 * torch.randn(len(lengths), TOKENS, VOCABULARY, generator=generator) for _ in range(2))
    ids = torch.randint(VOCABULARY, (len(lengths), TOKENS), generator=generator)
    mask = (torch.arange(TOKENS) < torch.tensor(lengths)[:, None]).float()
    mask[list(inactive)] = 0
    old = student + torch.randn(student.shape, generator=generator)
    return student, teacher, ids, mask, log_of(probabilities(old), ids).float()


def probabilities(logits: Tensor) -> Tensor:
    exponentials = logits.double().exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def log_of(distribution: Tensor, ids: Tensor) -> Tensor:
    return distribution.gather(-1, ids[..., None])[..., 0].log()


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum(-1)


def divergence(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    if alpha in (0.0, 1.0):
        return kl(student, teacher) if alpha else kl(teacher, student)
    mixture = (1 - alpha) * student + alpha * teacher
    return alpha * kl(teacher, mixture) + (1 - alpha) * kl(student, mixture)


def published(student_logits: Tensor, teacher_logits: Tensor, ids: Tensor, args: Any) -> Tensor:
    """The loss of each token, on policy, at temperature 1."""
    student, teacher = probabilities(student_logits), probabilities(teacher_logits)
    if args.distillation_mode == "sampled_token":
        log_student = log_of(student, ids)
        return (log_student - log_of(teacher, ids)).detach() * log_student
    if args.distillation_mode == "topk_logits":
        likeliest = student.topk(args.distillation_topk).indices
        student, teacher = (p.gather(-1, likeliest) for p in (student, teacher))
        rest = [1 - p.sum(-1, keepdim=True) for p in (student, teacher)]
        if args.distillation_add_tail:
            student, teacher = (torch.cat([p, tail], -1) for p, tail in zip((student, teacher), rest, strict=True))
        else:
            student, teacher = (p / (1 - tail) for p, tail in zip((student, teacher), rest, strict=True))
    return divergence(student, teacher, args.distillation_alpha)


def micro_batches_of_one(losses: Tensor, mask: Tensor) -> Tensor:
    means = [
        (loss * row).sum() / row.sum() if row.any() else loss.sum() * 0 for loss, row in zip(losses, mask, strict=True)
    ]
    return torch.stack(means).mean()


def one_micro_batch(losses: Tensor, mask: Tensor) -> Tensor:
    return (losses * mask).sum() / mask.sum()


def trained_with(
    trainer: Trainer, student: Tensor, teacher: Tensor, ids: Tensor, mask: Tensor, old: Any = None
) -> Tensor:
    logits = DistillationLogits(
        completion_ids=ids,
        completion_mask=mask,
        loss_mask=mask,
        # It divides them by the temperature, in float32.
        student_logits=student * trainer.temperature,
        teacher_logits=teacher * trainer.temperature,
    )
    inputs = {} if old is None else {"old_per_token_logps": old}
    loss: Tensor = trainer._compute_self_distillation_loss(trainer.model, inputs, logits)
    return loss


def value_and_gradient(loss: Tensor, logits: Tensor) -> tuple[float, Tensor]:
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.item(), gradient.double()


@pytest.mark.parametrize("inactive", [(), (1,), (0, 2)], ids=["all", "one not", "half"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_is_the_published_formula(
    settings: Any, objective: dict[str, Any], inactive: tuple[int, ...]
) -> None:
    trainer = settings(**objective)
    student, teacher, ids, mask, _ = tensors(inactive=inactive)
    student.requires_grad_()
    formula = micro_batches_of_one(published(student, teacher, ids, trainer.args), mask)
    expected, expected_gradient = value_and_gradient(formula, student)
    found, gradient = value_and_gradient(trained_with(trainer, student, teacher, ids, mask), student)
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected_gradient.abs().max() > 1e-3
    assert torch.allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)
    assert not gradient[mask == 0].any()


@pytest.mark.parametrize("clip", [2.0, 0.5, None])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_off_policy_every_token_is_weighted_by_its_clipped_ratio(
    settings: Any, objective: dict[str, Any], clip: float | None
) -> None:
    trainer = settings(distillation_is_clip=clip, **objective)
    student, teacher, ids, mask, old = tensors()
    student.requires_grad_()
    ratio = (log_of(probabilities(student), ids) - old.double()).exp().detach()
    assert ratio.min() < 0.5
    assert ratio.max() > 2
    weight = ratio.clamp(max=clip) if clip is not None else torch.ones_like(ratio)
    losses = weight * published(student, teacher, ids, trainer.args)
    expected, expected_gradient = value_and_gradient(micro_batches_of_one(losses, mask), student)
    found, gradient = value_and_gradient(trained_with(trainer, student, teacher, ids, mask, old), student)
    assert found == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


# What lasgroup/SDPO's compute_self_distillation_loss (commit 0e6d510, token-mean, is_clip 2.0)
# returns for `released_tensors`: the loss, its gradient at the second token's first four logits,
# and the norm of the whole gradient. By mode, alpha and, of the top 3, with or without tail.
RELEASED: dict[tuple[str, float, bool], tuple[float, tuple[float, ...], float]] = {
    ("sampled_token", 1.0, False): (21.27854, (0.243244, 0.004136, 0.047316, 1.485081), 3.688768),
    ("full_logits", 0.0, False): (2.766989, (0.051149, -0.000681, -0.004447, 0.150221), 0.536557),
    ("full_logits", 0.5, False): (0.442153, (0.007278, -0.000319, -0.003005, -0.019951), 0.064924),
    ("full_logits", 1.0, False): (3.151829, (0.072933, -0.002672, -0.028467, -0.574656), 1.064392),
    ("topk_logits", 0.0, True): (1.441932, (0.051149, -0.005157, -0.059006, 0.150221), 0.46878),
    ("topk_logits", 0.5, True): (0.347266, (0.010712, -0.000721, -0.008254, 0.001016), 0.083363),
    ("topk_logits", 1.0, True): (2.85543, (0.087307, -0.003626, -0.04148, -0.486898), 1.088836),
    ("topk_logits", 0.0, False): (0.955959, (0.054282, 0.0, 0.0, -0.299559), 0.503849),
    ("topk_logits", 0.5, False): (0.265526, (0.014693, 0.0, 0.0, -0.084074), 0.128327),
    ("topk_logits", 1.0, False): (2.221447, (0.068652, 0.0, 0.0, -0.725892), 1.17882),
}


def released_tensors() -> tuple[Tensor, ...]:
    """Student, teacher, tokens, mask and log S_old of one sequence of four tokens, one masked."""
    count = torch.arange(4 * 9, dtype=torch.float32)
    student = (3 * torch.sin(1.7 * count)).view(1, 4, 9)
    teacher = (3 * torch.cos(0.9 * count + 1)).view(1, 4, 9)
    ids = torch.tensor([[1, 5, 8, 2]])
    moved = torch.tensor([[0.4, -1.2, 0.0, 0.1]])
    old = student.log_softmax(-1).gather(-1, ids[..., None])[..., 0] + moved
    return (student.requires_grad_(), teacher, ids, torch.tensor([[1.0, 1.0, 1.0, 0.0]]), old.detach())


@pytest.mark.parametrize("chunk", [2**25, 9, 18], ids=["whole", "by token", "by two"])
@pytest.mark.parametrize("objective", RELEASED, ids=str)
def test_the_loss_is_that_of_the_released_code(
    settings: Any, objective: tuple[str, float, bool], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_trainer, "CHUNK_ELEMENTS", chunk)
    (mode, alpha, tail), (loss, gradient, norm) = objective, RELEASED[objective]
    trainer = settings(
        distillation_mode=mode,
        distillation_alpha=alpha,
        distillation_topk=3,
        distillation_add_tail=tail,
        distillation_is_clip=2.0,
    )
    student, *others = released_tensors()
    found, slope = value_and_gradient(trained_with(trainer, student, *others), student)
    assert found == pytest.approx(loss, rel=1e-5)
    assert slope[0, 1, :4].tolist() == pytest.approx(gradient, rel=1e-4, abs=2e-6)
    assert slope.norm().item() == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("gap", [0.05, 0.5])
@pytest.mark.parametrize("sharpness", [2.0, 8.0], ids=["flat", "confident"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_of_a_bfloat16_model_is_computed_in_float32(
    settings: Any, objective: dict[str, Any], sharpness: float, gap: float
) -> None:
    """Against the formula in float64 on the same logits."""
    trainer = settings(**objective)
    generator = torch.Generator().manual_seed(1)
    clean = 30 * torch.tanh(sharpness * torch.randn(1, 8, 8192, generator=generator) / 30)
    noisy = clean + gap * torch.randn(clean.shape, generator=generator)
    scaled = [(one * trainer.temperature).bfloat16() for one in (clean, noisy)]
    student, teacher = scaled[0].requires_grad_(), scaled[1]
    ids = torch.randint(8192, (1, 8), generator=generator)
    mask = torch.ones(1, 8)
    logits = DistillationLogits(ids, mask, mask, student, teacher)
    loss = trainer._compute_self_distillation_loss(trainer.model, {}, logits)
    exact = student.detach().double().requires_grad_()
    formula = published(exact / trainer.temperature, teacher.double() / trainer.temperature, ids, trainer.args).mean()
    expected, expected_gradient = value_and_gradient(formula, exact)
    found, gradient = value_and_gradient(loss, student)
    assert loss.dtype is torch.float32
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-7)
    cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), expected_gradient.flatten(), dim=0)
    assert cosine > 0.999


def test_padding_of_other_micro_batches_is_left_out_and_changes_nothing(settings: Any) -> None:
    trainer = settings(distillation_mode="full_logits", distillation_alpha=1.0)
    row = trainer.train_dataset[0]
    trainer.model.train()
    batch = trainer._prepare_training_batch([row, row])
    width = batch["completion_ids"].size(1)
    padded = dict(batch)
    for name in ("prompt_ids", "prompt_mask", "teacher_input_ids", "teacher_attention_mask"):
        padded[name] = torch.nn.functional.pad(batch[name], (5, 0))
    for name in ("completion_ids", "completion_mask", "teacher_input_ids", "teacher_attention_mask"):
        padded[name] = torch.nn.functional.pad(padded[name], (0, 3))
    trimmed = training_trainer.trim(padded)
    assert trimmed["completion_ids"].size(1) == int(batch["completion_mask"].sum(1).max()) <= width
    assert trimmed["teacher_attention_mask"][:, 0].any()
    assert trimmed["prompt_mask"][:, 0].any()
    assert torch.equal(trimmed["prompt_ids"], batch["prompt_ids"])
    losses = [trainer.compute_loss(trainer.model, one).item() for one in (batch, padded)]
    assert losses[0] == losses[1] != 0


def test_entropy_and_divergence_are_those_of_the_distributions(settings: Any) -> None:
    trainer = settings()
    student, teacher, ids, mask, _ = tensors(inactive=(1,))
    trainer._metrics["train"].clear()
    trainer.model.train()
    trained_with(trainer, student, teacher, ids, mask)
    ours, theirs = probabilities(student), probabilities(teacher)
    for name, each in ((ENTROPY, -(ours * ours.log()).sum(-1)), (KL, kl(ours, theirs))):
        (logged,) = trainer._metrics["train"][name]
        assert logged == pytest.approx(((each * mask).sum() / mask.sum()).item(), rel=1e-5)


def test_the_sampled_token_s_gradient_is_that_of_the_reverse_divergence(settings: Any) -> None:
    """Averaged over all tokens that could have been sampled, each as often as the student does."""
    trainer = settings(distillation_mode="sampled_token")
    student, teacher, *_ = tensors()
    student, teacher = student[:1, :1].clone().requires_grad_(), teacher[:1, :1]
    chances = probabilities(student).detach().flatten()
    mean = torch.zeros(1, 1, VOCABULARY, dtype=torch.float64)
    for token, chance in enumerate(chances):
        loss = trained_with(trainer, student, teacher, torch.tensor([[token]]), torch.ones(1, 1))
        mean += chance * value_and_gradient(loss, student)[1]
    exact = kl(probabilities(student), probabilities(teacher)).sum()
    assert torch.allclose(mean, value_and_gradient(exact, student)[1], atol=1e-6)
    assert exact > 0.1


def test_the_tail_keeps_what_the_likeliest_tokens_leave_out(settings: Any) -> None:
    """The divergence is below that over all tokens, and nearer the more tokens are told apart."""
    student, teacher, ids, mask, _ = tensors()
    full = trained_with(
        settings(distillation_mode="full_logits", distillation_alpha=1.0), *(student, teacher, ids, mask)
    ).item()
    tails = [
        trained_with(
            settings(
                distillation_mode="topk_logits",
                distillation_alpha=1.0,
                distillation_topk=k,
                distillation_add_tail=True,
            ),
            *(student, teacher, ids, mask),
        ).item()
        for k in (1, 4, 8, VOCABULARY - 1)
    ]
    assert tails == sorted(tails)
    assert 0 < tails[0] < full
    assert tails[-1] == pytest.approx(full, rel=1e-4)


def completion_logits(model: Any, prompt: list[int], completion: list[int]) -> Tensor:
    """One sequence at a time, without padding."""
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
    kept: Tensor = logits[len(prompt) - 1 : -1]
    return kept


@pytest.mark.parametrize("objective", [{}, OBJECTIVES[5].values[0]], ids=["sampled token", "top 5, tail"])
def test_from_rollouts_to_the_loss_it_is_the_method(
    settings: Any, objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, masks, temperature, shift by one and adapters, on sampled completions."""
    trainer = settings(**objective)
    # TRL's own, whatever the job puts in its place.
    builder = SuccessfulRolloutTeacherContextBuilder(trainer)
    monkeypatch.setattr(trainer, "teacher_context_builder", builder)
    told, untold = trainer.train_dataset[0], trainer.train_dataset[3] | {"privileged_context": ""}
    trainer.model.train()
    batch = trainer._prepare_training_batch([told, told, untold, untold])
    found = trainer.compute_loss(trainer.model, batch).item()

    args, tokenizer = trainer.args, trainer.processing_class
    lengths = batch["completion_mask"].sum(1).tolist()
    completions = [ids[:length] for ids, length in zip(batch["completion_ids"].tolist(), lengths, strict=True)]
    feedback = args.feedback_template.format(feedback_raw=told["privileged_context"])
    demonstration = args.solution_template.format(
        successful_previous_attempt=tokenizer.decode(completions[2], skip_special_tokens=True)
    )
    tasks = [row["prompt"][-1]["content"] for row in (told, told, untold, untold)]
    taught = [
        args.reprompt_template.format(prompt=tasks[0], solution="", feedback=feedback),
        args.reprompt_template.format(prompt=tasks[1], solution="", feedback=feedback),
        None,  # the one success of its group, which nothing was said about
        args.reprompt_template.format(prompt=tasks[3], solution=demonstration, feedback=""),
    ]

    def turn(text: str) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, enable_thinking=False, return_dict=True
        )["input_ids"]
        return ids

    model = trainer.accelerator.unwrap_model(trainer.model)
    total = 0.0
    with torch.no_grad():
        for task, text, completion in zip(tasks, taught, completions, strict=True):
            if text is None:
                continue
            student = completion_logits(model, turn(task), completion)
            model.set_adapter("teacher")
            teacher = completion_logits(model, turn(text), completion)
            model.set_adapter("default")
            assert not torch.allclose(student, teacher, atol=1e-3)
            losses = published(*(student[None] / 0.7, teacher[None] / 0.7, torch.tensor([completion]), args))
            total += losses.mean().item() / len(tasks)
    assert batch["self_distillation_mask"].tolist() == [1, 1, 0, 1]
    assert found * trainer.current_gradient_accumulation_steps == pytest.approx(total, rel=1e-3)


def test_where_it_differs_a_larger_micro_batch_shrinks_with_what_has_no_feedback(settings: Any) -> None:
    """Of equal lengths, TRL's loss and gradient are the method's times the share with feedback."""
    trainer = settings(distillation_mode="full_logits", distillation_alpha=1.0)
    student, teacher, ids, mask, _ = tensors(lengths=(TOKENS,) * ROWS, inactive=(1, 2, 3))
    student.requires_grad_()
    formula = one_micro_batch(published(student, teacher, ids, trainer.args), mask)
    method, method_gradient = value_and_gradient(formula, student)
    found, gradient = value_and_gradient(trained_with(trainer, student, teacher, ids, mask), student)
    assert found / method == pytest.approx(1 / ROWS, rel=1e-5)
    assert torch.allclose(gradient, method_gradient / ROWS, rtol=1e-4, atol=1e-8)


def test_where_it_differs_a_larger_micro_batch_gives_short_answers_more_weight(settings: Any) -> None:
    """The one token of the second row weighs as much as the six of the first."""
    trainer = settings(distillation_mode="full_logits", distillation_alpha=1.0)
    student, teacher, ids, mask, _ = tensors()
    student.requires_grad_()
    formula = one_micro_batch(published(student, teacher, ids, trainer.args), mask)
    _, method_gradient = value_and_gradient(formula, student)
    _, gradient = value_and_gradient(trained_with(trainer, student, teacher, ids, mask), student)
    weights = [(gradient[row].norm() / method_gradient[row].norm()).item() for row in range(ROWS)]
    assert weights == pytest.approx([sum(LENGTHS) / (ROWS * length) for length in LENGTHS], rel=1e-4)


def test_where_it_differs_a_long_teacher_prompt_loses_its_head(settings: Any) -> None:
    """The reference cuts at the end; neither happens here, since every row is made to fit before."""
    trainer = settings(max_reprompt_len=12)
    messages = [{"role": "user", "content": "fix the parser " * 20}]
    (whole,) = trainer._tokenize_prompts_untruncated([messages])
    builder = SuccessfulRolloutTeacherContextBuilder(trainer)
    (cut,) = builder._tokenize_teacher_messages([messages])["prompt_ids"].tolist()
    assert cut == whole[-12:]
    assert whole[0] == trainer.processing_class.bos_token_id != cut[0]


def test_where_it_differs_the_defaults() -> None:
    """TRL's are not the reference's (top 100 with tail, alpha 0.5); a recipe has to say it."""
    fields = SDPOConfig.__dataclass_fields__
    defaults = {
        name: fields[name].default
        for name in (
            *("distillation_mode", "distillation_alpha", "distillation_topk"),
            *("distillation_add_tail", "success_reward_threshold", "include_environment_feedback"),
            *("environment_feedback_only_without_solution", "remove_thinking_from_demonstration"),
            *("distillation_is_clip", "teacher_update_rate", "dont_reprompt_on_self_success"),
        )
    }
    assert defaults == {
        "distillation_mode": "sampled_token",
        "distillation_alpha": 1.0,
        "distillation_topk": None,
        "distillation_add_tail": False,
        "success_reward_threshold": 1.0,
        "include_environment_feedback": False,
        "environment_feedback_only_without_solution": False,
        "remove_thinking_from_demonstration": False,
        "distillation_is_clip": 2.0,
        "teacher_update_rate": 0.05,
        "dont_reprompt_on_self_success": True,
    }

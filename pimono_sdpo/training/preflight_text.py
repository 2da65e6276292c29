"""Lay out what the preflight found, for people."""

from typing import Any

Json = dict[str, Any]


def as_text(found: Json) -> str:
    """Lay out what was found in lines of a name and what is known of it."""
    rows = found["rows"]
    lines = [
        ("rows", f"{rows['used']} used, {rows['without_reward']} without a reward"),
        ("reward", f"not won by its trials on {found['reward_tried_on_rows']} rows"),
        ("chat template", f"keeps {found['templates_checked']} prompts whole"),
    ]
    for name, told in found["lengths"].items():
        lines.append(
            (
                name.replace("_", " "),
                f"{told['p50']} tokens (median), {told['p90']} (p90), {told['max']} (most); "
                f"{told['over']} rows were over {told['budget']} and shortened",
            )
        )
    lines += lines_of_memory(found["memory"])
    if "rollouts" in found:
        lines += _lines_of_rollouts(found)
    else:
        lines.append(("rollouts", "none were made: rewards, teacher gap and time are not known"))
    return laid_out(lines)


def laid_out(lines: list[tuple[str, str]]) -> str:
    """Lay out lines of a name and what is known of it."""
    return "\n".join(f"{name:<16}{text}" for name, text in lines)


def lines_of_memory(memory: Json) -> list[tuple[str, str]]:
    """Return the estimate beside what there is, and what lowers it."""
    parts = ", ".join(f"{name} {size}" for name, size in memory["parts_gib"].items() if size)
    measured = f", {memory['measured_gib']} measured" if "measured_gib" in memory else ""
    there = f" of {memory['available_gib']}" if memory["available_gib"] is not None else ""
    needed = f"{memory['total_gib']} GiB{measured}{there} on {memory['of']} ({parts})"
    return [("memory", needed), ("", f"lowered by {memory['lowered_by']}")]


def _lines_of_rollouts(found: Json) -> list[tuple[str, str]]:
    rollouts, gap, time = found["rollouts"], found["teacher_gap"], found["time"]
    low, high = gap["interval_90"] if gap else (None, None)
    between = "" if low is None else f" (90 % interval {low:.3f} to {high:.3f})"
    unsure = low is None or high is None or low <= 0 < high
    hint = "; not sure, more --preflight_rows would tell" if gap and unsure else ""
    cost = "" if time["dollars"] is None else f", {time['dollars']:.2f} dollars"
    return [
        (
            "rollouts",
            f"{rollouts['completions']} of {rollouts['rows']} rows: reward "
            f"{rollouts['reward_min']:.2f} to {rollouts['reward_max']:.2f}, mean "
            f"{rollouts['reward_mean']:.2f}; {rollouts['success_share']:.0%} successes, "
            f"{rollouts['flat_group_share']:.0%} flat groups",
        ),
        (
            "teacher gap",
            "no completion was given feedback"
            if gap is None
            else f"{gap['gap']:+.3f}{between}: mean reward {gap['teacher']:.3f} when told, "
            f"{gap['student']:.3f} when not, {gap['rows']} rows{hint}",
        ),
        (
            "time",
            f"{time['step_seconds']:.1f} s a step ({time['generation_seconds']:.1f} sampling), "
            f"{time['steps']} steps: {time['hours']:.2f} h{cost}, at this machine's speed",
        ),
    ]

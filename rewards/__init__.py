"""Score completions. A reward is a plain function: `f(prompts, completions, **columns)`."""

from rewards.trace_grounding import trace_grounding_reward

__all__ = ["trace_grounding_reward"]

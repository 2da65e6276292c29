"""Later user messages that correct the agent, decided by cues in many languages and a small model.

decide.py      the decision for each message, with its reason; weights.json holds the weights
features.py    the cues of a message and of its situation; cues.toml holds their words
judge.py       a chat model that decides instead, if asked for
"""

from processors.corrections.decide import find_corrections
from processors.corrections.judge import Judge

__all__ = ["Judge", "find_corrections"]

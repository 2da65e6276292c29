"""Later user messages that correct the agent, decided by cues in many languages and their weights.

decide.py      the decision for each message, with its reason
features.py    the cues of a message and of its situation; cues.toml holds their words and weights
judge.py       the question to a chat model that decides instead, if one is asked
"""

from processors.corrections.decide import find_corrections

__all__ = ["find_corrections"]

"""Later user messages that correct the agent, decided by cues in many languages and a small model.

decide.py      the decision for each message, with its reason; weights.json holds the weights
features.py    the cues of a message and of its situation; cues.toml holds their words
judge.py       the question to a chat model that decides instead, if one is asked
"""

from processors.corrections.decide import find_corrections

__all__ = ["find_corrections"]

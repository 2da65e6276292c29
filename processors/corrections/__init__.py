"""Later user messages that correct the agent, decided by cues in many languages and a small model.

decide.py      the decision for each message, with its reason; weights.json holds the weights
features.py    the cues of a message; cues.toml holds their words
"""

from processors.corrections.decide import find_corrections

__all__ = ["find_corrections"]

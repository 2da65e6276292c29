"""Later user messages that correct the agent, decided by cues in many languages and a small model.

decide.py     the decision for each message, with its reason
features.py   the cues of a message; their words are in cues.toml
fit.py        fits weights.json to labelled messages
labels.py     joins labels to the sessions they are about
eval.py       precision and recall, each author left out in turn
"""

from processors.corrections.decide import find_corrections

__all__ = ["find_corrections"]

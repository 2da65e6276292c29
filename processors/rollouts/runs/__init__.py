"""Runs of agents as conversations: their turns, their actions, the protocols of their calls."""

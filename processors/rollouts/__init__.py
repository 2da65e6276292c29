"""Stages that turn rollouts and recorded sessions into training steps, and rollouts into preference pairs."""

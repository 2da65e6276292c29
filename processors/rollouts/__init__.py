"""Stages over rollouts and recorded sessions: training steps, preference pairs, comparisons."""

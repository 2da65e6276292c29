"""Stages over rollouts and recorded sessions: training steps and preference pairs."""

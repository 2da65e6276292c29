"""Stages of a duel: sample turns, ask players and judges, score, and export training rows."""

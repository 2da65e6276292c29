"""The stages of a duel: draw turns, ask players and judges, score, export training rows."""

"""Duels between two models: players and judges are asked, then turns are scored and the winner decided.

Scores go from 0 to 100 in favour of the challenger; 50 is parity.
"""

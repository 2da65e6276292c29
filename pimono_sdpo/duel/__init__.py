"""Who wins a duel: stages that ask players and judges, the verdict, and what speaks against it.

Scores go from 0 to 100 in favour of the challenger; 50 is parity.
"""

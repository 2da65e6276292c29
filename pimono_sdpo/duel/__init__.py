"""Who wins a duel: stages that ask players and judges, the verdict, and what speaks against it.

    stages.py   turns, answers, judgments
    gate.py     is the challenger better: our rules, and those of the system this is modelled on
    result.py   a scored duel as a dataset with report and doubts, and as rows to train on

Scores go from 0 to 100 in favour of the challenger; 50 is parity.
"""

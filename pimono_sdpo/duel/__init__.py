"""Who won: votes of a panel of judges to scores of turns, a verdict, and what to doubt of it.

    votes.py      judgments as an array of votes
    scores.py     what a turn scored; buckets
    gate.py       is the challenger better: our rules
    original.py   the rules of the system this is modelled on, with their defects
    agreement.py  do judges agree, with each other and with themselves
    doubts.py     position, length, single judges: what else could explain a verdict
    summary.py    all of it as JSON

Scores go from 0 to 100 in favour of the challenger; 50 is parity.
"""

METRICS = ("correctness", "grounding", "progress", "protocol", "efficiency")

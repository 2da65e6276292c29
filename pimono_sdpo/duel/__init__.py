"""Who wins a duel: stages that ask players and judges, the verdict, and what speaks against it.

    gate.py          is the challenger better: our rules
    albedo_rules.py  the rules of the system this is modelled on, with their defects
    diagnostics.py   agreement, position, length, single judges: what else could explain a verdict
    summary.py       all of it as JSON

Scores go from 0 to 100 in favour of the challenger; 50 is parity.
"""

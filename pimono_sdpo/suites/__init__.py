"""Task suites: bugs to fix, with what judges an answer; built, divided, shown to agents.

    suite.py             the file: read, checked, written; what an agent may see of a task's repo
    build.py             a suite from a checkout, JSON lines, or the project's own programs
    split.py             a suite for training and one for testing; checks of training rows
    stored_rollouts.py   rollouts of a suite, as they are stored

The fixed program is in `solution` alone: neither the files an agent sees nor the spec hold it.
"""

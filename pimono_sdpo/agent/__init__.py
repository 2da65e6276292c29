"""An agent that mends a repository with four tools: what it may do, and the loop that drives it.

schemas.py    the tools' arguments, as JSON Schemas
tools.py      the tools, confined to a workspace
protocol.py   what a model said, read as one action
prompts.py    what it is told
run.py        what a run is: its rules and its state
driver.py     the loop: ask, act, test, until it is done
patch.py      what it changed, as a diff
events.py     the trace of a run
"""

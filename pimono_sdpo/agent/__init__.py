"""An agent that repairs a repository with four tools, and the runs of it on task suites.

tools.py       the tools, confined to a workspace
protocol.py    a model's answer, read as one action
prompts.py     the system prompts, the goal and the driver's notes
driver.py      the loop: ask, act, test, until the run ends; its trace
task_tests.py  tests of a task's files, their stored results, retests of patches
rollout.py     runs as rows, shard by shard
run.py         rollouts of a suite: options, settings, output
evaluation.py  two models compared on a held-out suite
"""

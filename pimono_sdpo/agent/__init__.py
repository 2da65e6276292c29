"""An agent that repairs a repository with four tools, and the runs of it on task suites.

tools.py       the tools, confined to a workspace, and the diff of what they changed
protocol.py    the prompts, and a model's answer, read as one action
driver.py      the loop: ask, act, test, until the run ends; its trace
task_tests.py  tests of a task's files, their stored results, retests of patches
rollout.py     rollouts of a suite: options, settings, rows, output
evaluation.py  two models compared on a held-out suite
"""

"""Tests in one process, the answer in another: values go between them, never objects.

    codec.py    values as a flat table that JSON can hold
    serve.py    the answer's process: imports it, calls it, sees nothing of the tests
    connection.py, handles.py   the tests' process: what stands there for the answer's objects
    judge.py    starts both inside one sandbox, runs pytest, reports

A list that comes back is a list of the tests' own interpreter, whatever class it had over there, so
no `__eq__` of the answer is asked whether it equals an expected value. Lists, dicts and shared
objects that the answer changed are changed on the tests' side, too. Objects of the answer's
classes stay there; the tests hold handles. What such an object says to an expected value is not
asked: `==` is false, order and arithmetic raise TypeError (see `handles.py`).

    copies.py   lists and the like that are attributes there: whoever changes one ends the run

Tests that change such a list, derive a class from one of the answer, or hand over objects of their
own classes cannot be judged, and the run says so. Not supported, and failing: an `==` or order
between an object and a value that the answer defines itself, `dataclasses.asdict` and `type(x) is`
of an object, `importlib.reload`, the `__cause__` of an exception, logs, warnings, stderr and stdin
of the answer, deleted environment variables. Set `together` for such tests.
"""

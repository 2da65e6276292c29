"""ClassEval through recorded tests: right answers must pass; stubs and mutants as the plain tests say.

    python -m benchmarks.classeval FILE

FILE is data/ClassEval_data.json of FudanSELab/ClassEval: 100 classes with tests and a reference. For
each that can be recorded, the reference, a stub without bodies, and two mutants are judged; the truth
is what the recorded ones of its tests say beside the answer. What cannot be recorded, and every false
verdict, is printed with its reason; the exit code is 1 when there is a false one.
"""

import argparse
import ast
import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rewards.sandbox import Server
from rewards.verifiers import pytest_tests, recorded_tests, tests
from rewards.verifiers.outcomes import PASSED

SECONDS = 10
SWAPPED: dict[type[ast.AST], type[Any]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def stub(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def mutants(source: str, seed: str) -> Iterator[str]:
    """Two programs, each with an operator, a number or a result changed."""
    tree = ast.parse(source)
    places = [at for at, node in enumerate(ast.walk(tree)) if mutated(copy.deepcopy(node))]
    for at in random.Random(seed).sample(places, min(2, len(places))):
        changed = copy.deepcopy(tree)
        mutated(list(ast.walk(changed))[at])
        yield ast.unparse(changed)


def mutated(node: ast.AST) -> bool:
    """Change a node; whether it was one that can be changed."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            node.op = SWAPPED[type(op)]()
        case ast.Compare(ops=[op, *_]) if type(op) in SWAPPED:
            node.ops[0] = SWAPPED[type(op)]()
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.Return(value=ast.expr()):
            node.value = ast.Constant(None)
        case _:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    rows = json.loads(parser.parse_args().file.read_text())
    counts: Counter[str] = Counter()
    took = []
    with Server(imports=tests.IMPORTS) as server:
        python = tests.in_server(server)
        for row in rows:
            imports, name = "\n".join(row["import_statement"]), row["class_name"]
            reference = f"{imports}\n{row['solution_code']}"
            defined = [n.name for n in ast.parse(reference).body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
            test = f"from solution import {', '.join(defined)}\n{imports}\n{row['test']}"
            given: dict[str, Any] = {"files": {"test_solution.py": test}, "seconds": SECONDS}
            try:
                made = recorded_tests.record({"solution.py": reference}, given, python)
            except recorded_tests.NotRecordable as why:
                counts["not recordable"] += 1
                print(f"REFUSED: {name}: {str(why)[:200]}", flush=True)
                continue
            recorded = msgspec.convert(made, recorded_tests.RecordedTests)
            beside = pytest_tests.PytestTests(**given, passes=recorded.passes)
            counts["recordable"] += 1
            counts["whole"] += not recorded.left_out
            kinds = [("right", reference), ("stub", stub(reference))]
            for kind, source in [*kinds, *(("mutant", one) for one in mutants(reference, name))]:
                files = {"solution.py": source}
                begun = time.perf_counter()
                result = tests.summarize_outcomes(recorded_tests.verify_recorded(files, recorded, python))
                took.append(time.perf_counter() - begun)
                plain = pytest_tests.verify_pytest(files, beside, python)[: len(recorded.passes)]
                truth = set(plain) == {PASSED}
                counts[f"{kind} {result.status}"] += 1
                if truth != (result.status == "passed"):
                    counts["false"] += 1
                    print(f"FALSE: {name} {kind}: {result.status}. {result.feedback}", flush=True)
    print(dict(counts), f"median {sorted(took)[len(took) // 2]:.2f} s")
    sys.exit(1 if counts["false"] else 0)


if __name__ == "__main__":
    main()

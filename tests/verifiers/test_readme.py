"""The README's worked example says what it prints."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_worked_example_of_tests_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if "import tests" in block)
    exec(compile(example, str(README), "exec"), {})
    assert f"# {capsys.readouterr().out}" == example.splitlines(keepends=True)[-1]

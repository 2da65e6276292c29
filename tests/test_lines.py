import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.traces import lines as module
from pimono_sdpo.traces.lines import read_objects


@pytest.mark.parametrize(
    ("text", "objects", "counts"),
    [
        ('{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}], (2, 0, 0)),
        ('{"a": 1}{"b": 2}', [{"a": 1}, {"b": 2}], (0, 1, 0)),
        ('{"a": 1}garbage{"b": 2}', [{"a": 1}, {"b": 2}], (0, 1, 0)),
        ('{"a": 1}{"mail": "\\*"}', [{"a": 1}, {"mail": "\\*"}], (0, 1, 0)),
        ('{"cut": "of{"type": "x", "cwd": "/"}', [{"type": "x", "cwd": "/"}], (0, 1, 0)),
        ('{"c": [{"type": "text", "text": "lost"}, {"type": "te', [], (0, 0, 1)),
        ('{"type"' * 5000, [], (0, 0, 1)),
        ('{"mail": "\\***@x.org"}', [{"mail": "\\***@x.org"}], (0, 1, 0)),
        ('{"cut": "of', [], (0, 0, 1)),
        ('{"type": "message", "message": {"role": "user"', [], (0, 0, 1)),
        ('\ufeff{"a": 1}\r\n\n', [{"a": 1}], (1, 0, 0)),
        ('{"a": "x\u2028y\x85z"}', [{"a": "x\u2028y\x85z"}], (1, 0, 0)),
        ('{"a": "tab\there"}', [{"a": "tab\there"}], (0, 1, 0)),
        ("\0\0\n[1, 2]\nnull", [], (0, 0, 2)),
        ('{"a": ' * 5000, [], (0, 0, 1)),
    ],
)
def test_every_line_is_accounted_for(text: str, objects: list[object], counts: tuple[int, int, int]) -> None:
    lines = read_objects(text.encode())
    assert lines.objects == objects
    assert (lines.parsed, lines.repaired, lines.skipped) == counts


def test_a_line_that_is_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 20)
    long, longer = b'{"a": "%s"}' % (b"x" * 11), b'{"a": "%s"}' % (b"x" * 12)
    lines = read_objects(long + b"\n" + longer + b"\n" + long)
    assert lines.objects == [{"a": "x" * 11}] * 2
    assert (lines.parsed, lines.skipped, lines.bytes_parsed, lines.bytes_skipped) == (2, 1, 42, 21)


BROKEN = st.lists(
    st.sampled_from(['{"type": "x"', '"cwd": "é"}', "{}", "\\*", '"', ", ", "\n", "\0", "\\ud800", "é"])
).map("".join)


@given(st.text(max_size=300) | BROKEN)
def test_any_text_can_be_read(text: str) -> None:
    lines = read_objects(text.encode())
    filled = [line for line in text.split("\n") if line.strip("\0\ufeff \t\r")]
    assert lines.parsed + lines.repaired + lines.skipped == len(filled)
    total = lines.bytes_parsed + lines.bytes_repaired + lines.bytes_skipped
    assert total == len(text.encode("utf-8", "surrogatepass"))
    assert min(lines.bytes_parsed, lines.bytes_repaired, lines.bytes_skipped) >= 0


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers()), max_size=8))
def test_valid_lines_are_returned_unchanged(objects: list[dict[str, object]]) -> None:
    lines = read_objects("\n".join(json.dumps(o, ensure_ascii=False) for o in objects).encode())
    assert lines.objects == objects
    assert lines.parsed == len(objects)

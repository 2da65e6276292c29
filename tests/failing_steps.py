"""A session of Pi with steps that failed in each of the ways that exercises are made of."""

from tests.traces import HEADER, assistant, bash, call, result, trace, user

APP = """\
import json


def load(path):
    with open(path) as file:
        return json.load(file)


def save(path, value):
    with open(path, "w") as file:
        json.dump(value, file)
"""
REQUEST = "Give open in load of src/app.py the encoding UTF-8, then show how settings_test reads the settings."
OLD, NEW = "    with open(path) as file:", '    with open(path, encoding="utf-8") as file:'
SAVE = 'open(path, "w", encoding="utf-8")'
SESSION = trace(
    HEADER,
    user(REQUEST),
    call("read", "a", path="src/app.py"),
    result("read", APP, call_id="a"),
    assistant("Now I open the file as UTF-8 in load.", "toolUse"),
    call("edit", "b", path="src/app.py", edits=[{"oldText": f"{OLD}  # text", "newText": NEW}]),
    result("edit", "Could not find the exact text in src/app.py.", True, "b"),
    call("edit", "c", path="src/app.py", edits=[{"oldText": OLD, "newText": NEW}]),
    result("edit", "Successfully replaced 1 block(s) in src/app.py.", call_id="c"),
    assistant("save gets the encoding UTF-8, too.", "toolUse"),
    call("edit", "d", path="src/app.py", edits=[{"oldText": 'open(path, "w")'}]),
    result("edit", 'Validation failed for tool "edit":\n  - newText: must have required property', True, "d"),
    call("edit", "m", path="src/app.py", edits=[{"oldText": 'open(path, "w")', "newText": SAVE}]),
    result("edit", "Successfully replaced 1 block(s) in src/app.py.", call_id="m"),
    call("read", "e", path="tests/settings_test.py"),
    result("read", "ENOENT: no such file or directory, access '/home/ann/app/tests/settings_test.py'", True, "e"),
    *bash("find . -name 'settings*'", "./tests/unit/settings_test.py", call_id="f"),
    call("read", "g", path="tests/unit/settings_test.py"),
    result("read", "def test_settings():\n    assert load('x') == {}\n", call_id="g"),
    *bash("rg -n settings_path src tests", "bash: line 1: rg: command not found\n\nCommand exited with code 127", True, "h"),
    *bash("grep -rn settings_path src tests", "src/conf.py:3:settings_path = 'x'", call_id="i"),
    assistant("Now I look into src/.", "toolUse"),
    call("read", "j", path="src"),
    result("read", "EISDIR: illegal operation on a directory, read", True, "j"),
    *bash("ls src", "app.py\nconf.py", call_id="k"),
    assistant("The tests read the settings with load. Both functions use UTF-8 now."),
    user("No, that is wrong. You should not have changed save, I asked for load only."),
    call("edit", "l", path="src/app.py", edits=[{"oldText": SAVE, "newText": 'open(path, "w")'}]),
    result("edit", "Successfully replaced 1 block(s) in src/app.py.", call_id="l"),
)  # fmt: skip

"""The pages in a real browser: what a reader sees, and what a hostile trace cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest

from cards.view.rows import read_labels
from pimono_sdpo.cli.view import render_review, render_view
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests.browser import open_file
from tests.card_data import run
from tests.traces import HEADER, bash, trace, user

HOSTILE = (
    "Mend this \u2028 line \u2029 please </script><script>window.owned = 1</script>"
    "<img src=http://127.0.0.1:9/x onerror='window.owned = 2'><!-- ]]> {{ 7 * 7 }} \u202e reversed"
    " \ud800 ' \" & &lt;b&gt; javascript:window.owned=3"
)
FAILURE = f"{HOSTILE}\nsrc/a.ts(4,7): error TS2322: no\n\nCommand exited with code 2"
LUMINANCE = """
([foreground, background]) => {
  const light = (colour) => {
    const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const [a, b] = [light(foreground), light(background)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}
"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    (folder / "traces").mkdir()
    for path in SAMPLE_SESSIONS.glob("*.jsonl"):
        (folder / "traces" / path.name).write_bytes(path.read_bytes())
    hostile = trace(HEADER, user(HOSTILE), *bash(HOSTILE, FAILURE, error=True), user(HOSTILE))
    (folder / "traces" / "<b>hostile&.jsonl").write_text(hostile)
    run_filter(str(folder / "traces"), folder / "rows", FilterOptions(unit="session", min_score=3.0))
    (folder / "page.html").write_text(render_view(folder / "rows", [], 500))
    return folder / "page.html"


def listed(page: Any) -> list[str]:
    found: list[str] = page.locator("button.ask").all_inner_texts()
    return found


def test_a_reader_searches_sorts_and_opens_rows_by_keyboard(browser: Any, page_file: Path) -> None:
    with open_file(browser, page_file) as opened:
        page = opened.page
        scores = [cell for cell in page.locator("td.number").all_inner_texts() if cell != "-"]
        assert scores == sorted(scores, key=float, reverse=True)
        page.locator("th[data-key=score] button").click()
        assert page.locator("th[data-key=score]").get_attribute("aria-sort") == "ascending"
        again = [cell for cell in page.locator("td.number").all_inner_texts() if cell != "-"]
        assert again == scores[::-1]
        everything = len(listed(page))
        assert not page.locator("button.more").is_visible()
        page.keyboard.press("/")
        page.keyboard.type("reversed")
        assert len(listed(page)) == 1
        assert page.locator("#count").inner_text() == f"1 of {everything}"
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        detail = page.locator("tr.detail")
        assert "error TS2322" in detail.inner_text()
        assert detail.locator("mark[title=build_lint_compile]").first.inner_text() == "error TS2322"
        detail.locator("summary", has_text="In the session").first.click()
        assert "tool result · bash · marked as an error · exit code 2 · this" in detail.inner_text()
        page.keyboard.press("Escape")
        assert page.locator("tr.detail").count() == 0
        assert opened.problems == []


def test_rows_are_listed_by_outcome_and_category(browser: Any, page_file: Path) -> None:
    with open_file(browser, page_file) as opened:
        page = opened.page
        page.get_by_role("button", name="Rejected", exact=True).click()
        outcomes = set(page.locator("span.outcome").all_inner_texts())
        assert "selected" not in outcomes
        assert len(outcomes) > 1
        page.get_by_role("button", name="All", exact=True).click()
        page.locator(".bars button", has_text="runtime_exception").click()
        assert page.locator("#category").input_value() == "runtime_exception"
        for row in page.locator("tr.row").all():
            assert "runtime_exception" in row.inner_text()


def test_a_hostile_trace_stays_text(browser: Any, page_file: Path) -> None:
    with open_file(browser, page_file) as opened:
        page = opened.page
        for button in page.locator("button.ask").all():
            button.click()
        shown = page.locator("body").inner_text()
        assert "</script><script>window.owned = 1</script>" in shown
        assert "{{ 7 * 7 }}" in shown
        assert "⟨U+202E⟩ reversed" in shown
        assert "\u202e" not in shown
        assert page.evaluate("window.owned === undefined")
        assert page.locator("script").count() == 2
        assert page.locator("img").count() == 0
        # One address: the file itself. No font, no picture, no icon from anywhere.
        assert set(opened.asked) == {page_file.resolve().as_uri()}
        assert opened.problems == []


def test_nothing_is_wider_than_a_phone(browser: Any, page_file: Path, tmp_path: Path) -> None:
    log = run()
    for entry in log["log_history"]:
        entry["self_distillation/a_metric_with_the_longest_name_of_them_all"] = 1.0
    (tmp_path / "run.json").write_text(json.dumps(log))
    (tmp_path / "run.html").write_text(render_view(tmp_path, [], 10))
    for file in (page_file, tmp_path / "run.html"):
        with open_file(browser, file) as opened:
            page = opened.page
            page.set_viewport_size({"width": 390, "height": 800})
            page.locator("button.ask").first.click()
            for folded in page.locator("#page > details > summary").all():
                folded.click()
            for selector in ("html", ".scroll", ".card", ".detail"):
                for part in page.locator(selector).all():
                    assert part.evaluate("node => node.scrollWidth <= node.clientWidth"), selector


def test_an_address_leads_to_its_row(browser: Any, page_file: Path) -> None:
    with open_file(browser, page_file) as opened:
        page = opened.page
        page.get_by_role("button", name="Rejected", exact=True).click()
        last = page.locator("tr.row").last
        last.locator("button.ask").click()
        address, name = page.evaluate("location.hash"), last.get_attribute("id")
        assert address == f"#{name}"
        page.goto(f"{page_file.resolve().as_uri()}{address}")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.locator("tr.row.open").get_attribute("id") == name
        page.evaluate("location.hash = document.querySelector('tr.row').id")
        page.wait_for_function("document.querySelector('tr.row').classList.contains('open')")
        assert opened.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser: Any, page_file: Path, scheme: str) -> None:
    with open_file(browser, page_file, scheme) as opened:
        page = opened.page
        page.locator("button.ask").first.click()
        for selector, ground in (
            ("h1", "body"),
            ("#subtitle", "body"),
            ("tr.row:not(.open) td.where", "section.card"),
            (".chip:not(.plain)", ".chip:not(.plain)"),
            ("mark", "mark"),
            ("span.outcome.no", "section.card"),
            (".switch [aria-pressed=true]", ".switch [aria-pressed=true]"),
        ):
            colours = [
                page.locator(selector).first.evaluate("node => getComputedStyle(node).color"),
                page.locator(ground).first.evaluate("node => getComputedStyle(node).backgroundColor"),
            ]
            assert page.evaluate(LUMINANCE, colours) >= 4.5, (selector, colours)


def test_rows_are_judged_from_the_keyboard_and_saved(browser: Any, page_file: Path, tmp_path: Path) -> None:
    folder = page_file.parent
    review = tmp_path / "review.html"
    review.write_text(render_review(folder / "rows", "rows", [str(folder / "traces")], 500, 0))
    with open_file(browser, review) as opened:
        page = opened.page
        state, progress = page.locator("#state"), page.locator("#progress")
        total = int(progress.inner_text().split()[3].rstrip(","))
        assert "The filter said" not in state.inner_text()
        page.keyboard.press("y")
        assert progress.inner_text() == f"Row 2 of {total}, 1 answered"
        page.keyboard.press("n")
        page.keyboard.type('trivial, "yes"; =1')
        assert "The filter said" in state.inner_text()
        page.keyboard.press("Enter")
        page.keyboard.press("w")
        page.keyboard.type("no idea yes")
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("y")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("u")
        assert progress.inner_text() == f"Row 3 of {total}, 2 answered"
        page.reload()
        page.wait_for_selector("body[data-ready]")
        # The first row without an answer is shown again.
        assert progress.inner_text() == f"Row 3 of {total}, 2 answered"
        assert page.locator("#why").input_value() == "no idea yes"
        with page.expect_download() as download:
            page.keyboard.press("s")
        download.value.save_as(tmp_path / download.value.suggested_filename)
        assert opened.problems == []
    labels = read_labels(tmp_path / "rows-labels.csv")
    assert [(one["answer"], one["why"]) for one in labels[:4]] == [
        ("y", ""),
        ("n", 'trivial, "yes"; =1'),
        ("", "no idea yes"),
        ("", ""),
    ]
    assert len(labels) == total
    assert {one["kept"] for one in labels} == {"yes", "no"}
    assert all((one["outcome"] == "selected") == (one["kept"] == "yes") for one in labels)


def test_a_training_is_drawn(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run()))
    (tmp_path / "run.html").write_text(render_view(tmp_path, [], 10))
    with open_file(browser, tmp_path / "run.html") as opened:
        assert opened.page.locator("svg[aria-label='Mean reward'] circle").count() == 24
        assert opened.page.locator("svg[aria-label^='Divergence from the teacher'] polyline").count() == 1
        opened.page.locator("tr.row button.ask").first.click()
        assert "error TS2322" in opened.page.locator("tr.detail").inner_text()
        assert opened.problems == []

"""Write a model card, its pictures and a page of the run into a folder."""

from pathlib import Path
from typing import Any

from cards.lint import lint_file
from cards.plots import write_evaluation_plot, write_report_plots, write_run_plot
from cards.render import render_model_card
from cards.view import render_page, run_view

Json = dict[str, Any]
PLOT, PAGE = "training.png", "training.html"
EVALUATION_PLOT = "evaluation.png"


def write_model_card(report: Json | None, run: Json, folder: Path) -> list[str]:
    """Write README.md, the plots it shows and the page it links.

    Returns what the Hub may refuse in the card.
    """
    write_run_plot(run, folder / PLOT)
    if report is not None:
        write_report_plots(report, folder)
    (folder / PAGE).write_text(render_page(run_view(run)), encoding="utf-8")
    if run["evaluation"]:
        write_evaluation_plot(run, folder / EVALUATION_PLOT)
    card = render_model_card(report, run)
    (folder / "README.md").write_text(card)
    return lint_file(folder / "README.md")

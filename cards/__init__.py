"""Cards of `pimono_sdpo`: dataset cards, model cards, reports and plots of what a run did."""

from cards.lint import lint_card, lint_file
from cards.plots import write_report_plots, write_run_plot
from cards.render import render_dataset_card, render_model_card, write_model_card

__all__ = [
    "lint_card",
    "lint_file",
    "render_dataset_card",
    "render_model_card",
    "write_model_card",
    "write_report_plots",
    "write_run_plot",
]

"""The HTML page of `view`: one self-contained file for a filter run or a training run."""

from cards.view.page import render_page, run_view
from cards.view.rows import rows_view

__all__ = ["render_page", "rows_view", "run_view"]

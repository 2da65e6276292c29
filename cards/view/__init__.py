"""One self-contained HTML page of what a filter run chose, or of what a training did."""

from cards.view.page import render_page, run_view
from cards.view.rows import rows_view

__all__ = ["render_page", "rows_view", "run_view"]

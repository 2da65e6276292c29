"""The HTML page of `view`: one self-contained file for rows, their review, or a training run."""

from cards.view.page import render_page, run_view
from cards.view.review import review_view
from cards.view.rows import rows_view

__all__ = ["render_page", "review_view", "rows_view", "run_view"]

"""The HTML page of `view`: one self-contained file for rows, their review, or a training run."""

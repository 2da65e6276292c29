"""The HTML page of `view`: one self-contained file for a filter run or a training run."""

"""What several commands check of their options."""

from pimono_sdpo.errors import OutputError


def check_test_fraction(test_fraction: float) -> None:
    """Raise OutputError for what is no chance of being held out."""
    if not 0.0 <= test_fraction < 1.0:
        raise OutputError(
            f"A test fraction of {test_fraction} is not in [0, 1); give such a number."
        )

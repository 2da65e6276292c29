"""Whether something takes time in proportion to its input, on a machine of any speed."""

from collections.abc import Callable
from time import thread_time


def is_linear(run: Callable[[int], object], size: int) -> bool:
    """Compare the CPU time for `size` with that for an eighth of it, the best of three each.

    What is quadratic takes 64 times as long. What takes no more than a moment is not measured.
    """
    small, large = (best(run, each) for each in (size // 8, size))
    return large < 0.02 or large < 24 * small


def best(run: Callable[[int], object], size: int) -> float:
    """CPU seconds of this thread, less disturbed by what else runs than the clock."""
    found = []
    for _ in range(3):
        begin = thread_time()
        run(size)
        found.append(thread_time() - begin)
    return min(found)

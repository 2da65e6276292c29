"""A chat with everything the settings say: endpoint, key, journal, prices, limit of costs."""

from collections.abc import Sequence
from pathlib import Path

from pimono_sdpo.inference.budget import Budget
from pimono_sdpo.inference.chat import Chat
from pimono_sdpo.inference.journal import Journal
from pimono_sdpo.inference.providers import endpoint
from pimono_sdpo.inference.settings import Asking, Settings, environment


def open_chat(
    asking: Asking,
    settings: Settings,
    journal: Path,
    models: Sequence[str],
    max_cost: float | None = None,
    kind: type[Chat] = Chat,
) -> Chat:
    """Open the endpoint of a section for these models; raises InferenceError.

    `max_cost` is in USD, for all calls of the journal; `kind` is Chat or Decisions.
    """
    found = endpoint(asking.provider, environment())
    book = Journal(journal)
    prices = settings.price_list()
    budget = None if max_cost is None else Budget(max_cost, models, prices, book)
    return kind(found, book, prices=prices, limits=asking.limits(), budget=budget)

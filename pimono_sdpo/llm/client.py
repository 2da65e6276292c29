"""A chat with everything the settings say: endpoint, key, journal, prices, limit of costs."""

from collections.abc import Sequence
from pathlib import Path

from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.journal import Journal
from pimono_sdpo.llm.money import Budget
from pimono_sdpo.llm.providers import endpoint
from pimono_sdpo.llm.settings import Asking, Settings, environment


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

"""Open a chat as the settings say: endpoint, key, journal, prices, cost limit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.journal import Journal
from pimono_sdpo.llm.money import Budget
from pimono_sdpo.llm.providers import NO_KEY, Endpoint, find_endpoint
from pimono_sdpo.llm.settings import CallSection, Settings, read_environment

MISSING_ANSWER = "The journal lacks an answer that this run needs; run without --replay."


def open_chat(
    section: CallSection,
    settings: Settings,
    journal: Path,
    models: Sequence[str],
    max_cost: float | None = None,
    kind: type[Chat] = Chat,
    *,
    concurrency: int | None = None,
    replay: bool = False,
) -> Chat:
    """Open the endpoint of a section for these models; raises InferenceError.

    `max_cost` is in USD, for all calls of the journal; `kind` is Chat or Decisions. With `replay`,
    all answers come from the journal.
    """
    if replay:
        where = Endpoint("journal", None, NO_KEY)
    else:
        where = find_endpoint(section.provider, read_environment())
    book = Journal(journal)
    prices = settings.price_list()
    budget = None if max_cost is None else Budget(max_cost, models, prices, book)
    limits = section.limits()
    limits = replace(limits, concurrency=concurrency or limits.concurrency)
    chat = kind(where, book, prices=prices, limits=limits, budget=budget)
    chat.stopped = MISSING_ANSWER if replay else None
    return chat

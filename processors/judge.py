"""Ask a chat model about corrections and rows; by default, both are decided offline.

Each question is asked once: answers are journaled by the hash of the request, so a run that was
interrupted goes on where it was. Secrets and machine paths are removed before a text is sent.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pimono_sdpo.errors import InferenceError

Messages = list[dict[str, str]]
JOURNAL = Path("pimono-sdpo", "judge.sqlite")
ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Judge:
    """A chat model and the provider or URL where it is served."""

    model: str
    provider: str

    def ask(self, questions: Sequence[Messages]) -> list[str]:
        """Return the answers of a few tokens to some questions.

        Raises InferenceError when the model cannot be asked; finished answers are kept.
        """
        # A notebook runs an event loop of its own.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(self._ask(questions))).result()

    async def _ask(self, questions: Sequence[Messages]) -> list[str]:
        from pimono_sdpo.llm.calls import Journal, Request
        from pimono_sdpo.llm.chat import Chat
        from pimono_sdpo.llm.settings import find_endpoint, read_environment

        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        endpoint = find_endpoint(self.provider, read_environment())
        chat = Chat(endpoint, Journal(caches / JOURNAL))
        requests = [Request(self.model, asked, temperature=0.0, max_tokens=ANSWER_TOKENS) for asked in questions]
        try:
            replies = await asyncio.gather(*map(chat.ask, requests))
        finally:
            await chat.close()
        for reply in replies:
            if reply.error:
                raise InferenceError(
                    f"`{self.model}` cannot judge: {reply.error}. Check the model, its address and the key, and run "
                    "the command again; finished answers are kept."
                )
        return [reply.text for reply in replies]

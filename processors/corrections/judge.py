"""Ask a chat model which later messages correct the agent; the offline decision is the default.

Each message is asked about once: answers are journaled by the hash of the request, so a run that
was interrupted goes on where it was. Secrets and machine paths are removed before a text is sent.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pimono_sdpo.errors import InferenceError
from processors.corrections.features import Turn
from processors.redact import redact_text

JOURNAL = Path("pimono-sdpo", "correction-judge.sqlite")
SENT_CHARS = 4000
ANSWER_TOKENS = 4
QUESTION = """\
You read a conversation between a user and a coding agent. Decide about the user's LAST message. \
Answer `yes` when it says or implies that something the agent did, said, assumed or was about to \
do is wrong, missing or not wanted, or when it reports that the result fails. Answer `no` for a \
new wish, an answer to a question of the agent, an approval, thanks, or a message that a program \
wrote. Answer with one word."""


@dataclass(frozen=True)
class Judge:
    """A chat model and the provider or URL where it is served."""

    model: str
    provider: str

    def decide(self, turns: Sequence[Turn]) -> list[bool | None]:
        """Return whether each message is a correction, None for an answer that is neither.

        Raises InferenceError when the model cannot be asked; finished answers are kept.
        """
        # A notebook runs an event loop of its own.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(self._ask(turns))).result()

    async def _ask(self, turns: Sequence[Turn]) -> list[bool | None]:
        from pimono_sdpo.llm.calls import Journal, Request
        from pimono_sdpo.llm.chat import Chat
        from pimono_sdpo.llm.settings import find_endpoint, read_environment

        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        endpoint = find_endpoint(self.provider, read_environment())
        chat = Chat(endpoint, Journal(caches / JOURNAL))
        requests = [
            Request(self.model, write_question(turn), temperature=0.0, max_tokens=ANSWER_TOKENS) for turn in turns
        ]
        try:
            replies = await asyncio.gather(*map(chat.ask, requests))
        finally:
            await chat.close()
        for reply in replies:
            if reply.error:
                raise InferenceError(
                    f"`{self.model}` cannot judge corrections: {reply.error}. Run the command "
                    "again; finished answers are kept."
                )
        return [read_answer(reply.text) for reply in replies]


def write_question(turn: Turn) -> list[dict[str, str]]:
    """Return the messages that ask about a turn."""
    did = "interrupted" if turn.aborted else "edited files" if turn.edited else "no edit"
    said, text = (redact_text(part, "")[0][-SENT_CHARS:] for part in (turn.said, turn.text))
    shown = f"USER: {redact_text(turn.before, '')[0]}\n\nAGENT ({did}): {said}\n\nUSER: {text}"
    return [{"role": "system", "content": QUESTION}, {"role": "user", "content": shown}]


def read_answer(text: str) -> bool | None:
    """Return what an answer says, None when it is neither yes nor no.

    >>> read_answer(" Yes."), read_answer("no"), read_answer("Possibly")
    (True, False, None)
    """
    word = text.strip().strip("`*\"'.!").lower()
    return {"yes": True, "no": False}.get(word)

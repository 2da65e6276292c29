"""Ask for typed decisions instead of text: probabilities of options, read from the logits.

`transformers serve` answers them at `/v1/systemone` with one forward pass per question. Nothing is
generated, so nothing can fail to parse, and equal questions get equal answers.
"""

import json
from collections.abc import Mapping

from huggingface_hub import AsyncInferenceClient, get_async_session, hf_raise_for_status

from pimono_sdpo.llm.calls import Json, Reply, Request
from pimono_sdpo.llm.chat import Chat, UnreadableReply, read_count
from pimono_sdpo.llm.providers import NO_KEY

PATH = "/systemone"


def make_question(model: str, state: str, questions: Mapping[str, Json]) -> Request:
    """Return a request for `Decisions`; a question has `type`, `instructions` and `criteria`."""
    return Request(model, [{"role": "user", "content": state}], extra={"questions": questions})


class Decisions(Chat):
    """A chat whose replies are JSON: probabilities of the options, by question."""

    async def _attempt(self, request: Request, client: AsyncInferenceClient) -> Reply:
        body = {
            "model": request.model,
            "state": request.messages[0]["content"],
            "questions": request.extra["questions"],
        }
        key = self.endpoint.key
        headers = {} if key == NO_KEY else {"Authorization": f"Bearer {key}"}
        # The inference client has no such task; this is the HTTP client that it uses itself.
        async with get_async_session() as session:
            response = await session.post(
                f"{self.endpoint.base_url}".rstrip("/") + PATH,
                json=body,
                headers=headers,
                timeout=self.limits.timeout,
            )
            hf_raise_for_status(response)
            return _read_answers(response.json(), request.extra["questions"])


def _read_answers(answer: object, questions: Mapping[str, Json]) -> Reply:
    answers = answer.get("answers") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not isinstance(answers, dict):
        raise UnreadableReply("no answers")
    found = {}
    for name, asked in questions.items():
        given = answers.get(name)
        chances = given.get("probabilities") if isinstance(given, dict) else None
        if not isinstance(chances, dict) or set(chances) != set(asked["criteria"]):
            raise UnreadableReply(f"no probabilities for `{name}`")
        if not all(isinstance(chance, float | int) for chance in chances.values()):
            raise UnreadableReply(f"probabilities of `{name}` that are no numbers")
        found[name] = chances
    usage = answer.get("usage")
    tokens = read_count(usage.get("input_tokens")) if isinstance(usage, dict) else 0
    return Reply(text=json.dumps(found), finish_reason="stop", prompt_tokens=tokens)

"""`instructor` against the server, with a real model: each way in which it asks for an object."""

import typing
import unittest

import instructor
import openai
import pydantic

from support import Server, ToolServer


class Bird(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=16)
    sings: bool
    colour: typing.Literal["black", "white", "red"]


def client_of(server, mode):
    return instructor.from_openai(openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0), mode=mode)


ASK = {"model": "smol", "temperature": 0, "max_tokens": 120, "max_retries": 0,
       "messages": [{"role": "user", "content": "Describe a raven."}]}


class Instructor(unittest.TestCase):
    def check(self, client):
        bird, answer = client.chat.completions.create_with_completion(response_model=Bird, **ASK)
        self.assertIsInstance(bird, Bird)
        self.assertGreater(answer.usage.completion_tokens, 5)
        *parts, last = client.chat.completions.create_partial(response_model=Bird, **ASK)
        self.assertGreater(len(parts), 5)
        self.assertIn(last.colour, ("black", "white", "red"))
        self.assertIsInstance(last.sings, bool)
        # Each part goes on from the one before.
        for before, after in zip(parts, [*parts[1:], last]):
            self.assertTrue((after.name or "").startswith(before.name or ""), (before, after))

    def test_by_a_schema(self):
        with Server("--served-model-name", "smol") as server:
            self.check(client_of(server, instructor.Mode.JSON_SCHEMA))

    def test_by_a_call(self):
        # Or the model may think until its tokens are spent.
        with ToolServer("--reasoning-parser", "none") as server:
            self.check(client_of(server, instructor.Mode.TOOLS))


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""`langchain-openai` against the server, with a real model."""

import typing
import unittest

import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from support import Server, ToolServer


class Bird(pydantic.BaseModel):
    """A bird."""

    name: str = pydantic.Field(max_length=16)
    sings: bool
    colour: typing.Literal["black", "white", "red"]


@tool
def weather(place: typing.Annotated[str, pydantic.Field(max_length=16)],
            days: typing.Annotated[int, pydantic.Field(ge=1, le=7)]) -> str:
    """The weather of a place."""
    return f"{place}, {days} days: sunny"


def chat_of(server, **more):
    return ChatOpenAI(model="smol", base_url=server.url + "/v1", api_key="k1", temperature=0, max_retries=0,
                      **{"max_tokens": 24, **more})


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "smol", "--api-key", "k1")
        cls.chat = chat_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def test_chat(self):
        messages = [SystemMessage("Answer in one sentence."), HumanMessage("What is a raven?")]
        answer = self.chat.invoke(messages)
        self.assertIn("raven", answer.content.lower())
        self.assertEqual(answer.response_metadata["finish_reason"], "length")
        self.assertEqual(answer.usage_metadata["output_tokens"], 24)
        self.assertGreater(answer.usage_metadata["input_tokens"], 10)
        again = self.chat.invoke([*messages, answer, HumanMessage("And a crow? " * 20)])
        self.assertGreater(again.usage_metadata["input_tokens"], answer.usage_metadata["input_tokens"] + 100)
        self.assertEqual(again.usage_metadata["input_token_details"]["cache_read"], 0)
        again = self.chat.invoke([*messages, answer, HumanMessage("And a crow? " * 20)])
        self.assertGreaterEqual(again.usage_metadata["input_token_details"]["cache_read"], 64)

    def test_a_stream_is_the_same_as_not(self):
        whole = self.chat.invoke("What is a raven?")
        chunks = list(chat_of(self.server, stream_usage=True).stream("What is a raven?"))
        self.assertGreater(len(chunks), 10)
        total = chunks[0]
        for chunk in chunks[1:]:
            total += chunk
        self.assertEqual(total.content, whole.content)
        self.assertEqual(total.response_metadata["finish_reason"], "length")
        self.assertEqual(total.usage_metadata["output_tokens"], whole.usage_metadata["output_tokens"])

    def test_a_batch_and_log_probabilities(self):
        questions = [f"Tell me about the number {i}." for i in range(8)]
        answers = chat_of(self.server, logprobs=True, top_logprobs=2).batch(questions)
        for question, answer in zip(questions, answers):
            self.assertEqual(answer.content, self.chat.invoke(question).content)
            tokens = answer.response_metadata["logprobs"]["content"]
            self.assertEqual("".join(t["token"] for t in tokens), answer.content)
            self.assertEqual({len(t["top_logprobs"]) for t in tokens}, {2})

    def test_stop(self):
        text = self.chat.invoke("Count from one to ten in words.").content
        stop = text[len(text) // 2:len(text) // 2 + 3]
        self.assertEqual(self.chat.invoke("Count from one to ten in words.", stop=[stop]).content, text[:text.index(stop)])

    def test_a_schema(self):
        for method in ("json_schema", "json_mode"):
            chat = chat_of(self.server, max_tokens=100).with_structured_output(Bird, method=method, include_raw=True)
            answer = chat.invoke("Describe a raven as JSON with name, sings (true or false) and colour.")
            self.assertTrue(answer["raw"].content.lstrip().startswith("{"))
            if method == "json_schema":
                self.assertIsInstance(answer["parsed"], Bird, answer)

    def test_responses(self):
        answer = chat_of(self.server, use_responses_api=True).invoke("What is a raven?")
        self.assertEqual(answer.text, self.chat.invoke("What is a raven?").content)
        chunks = list(chat_of(self.server, use_responses_api=True).stream("What is a raven?"))
        self.assertEqual("".join(chunk.text for chunk in chunks), answer.text)

    def test_completions(self):
        model = OpenAI(model="smol", base_url=self.server.url + "/v1", api_key="k1", temperature=0, max_tokens=12,
                       max_retries=0)
        text = model.invoke("The capital of France is")
        self.assertIn("Paris", text)
        self.assertEqual("".join(model.stream("The capital of France is")), text)
        result = model.generate(["The capital of France is", "The capital of Italy is"])
        self.assertEqual(result.generations[0][0].text, text)
        self.assertIn("Rome", result.generations[1][0].text)
        self.assertEqual(result.llm_output["token_usage"]["completion_tokens"], 24)


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ToolServer("--reasoning-parser", "none")
        cls.chat = chat_of(cls.server, max_tokens=100)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def test_a_call_and_its_result(self):
        for choice in ("any", "weather"):
            bound = self.chat.bind_tools([weather], tool_choice=choice, parallel_tool_calls=False)
            answer = bound.invoke("What is the weather in Bern?")
            self.assertEqual(answer.response_metadata["finish_reason"], "tool_calls")
            self.assertEqual(answer.invalid_tool_calls, [])
            (call,) = answer.tool_calls
            result = weather.invoke(call)
            self.assertIsInstance(result, ToolMessage)
            self.assertIn(call["args"]["place"], result.content)
        # The model copies the call that it was shown.
        history = []
        for _ in range(4):
            call = {"name": "weather", "args": {"place": "Bern", "days": 2}, "id": "1", "type": "tool_call"}
            history += [HumanMessage("What is the weather in Bern?"), AIMessage("", tool_calls=[call]),
                        ToolMessage("sunny", tool_call_id="1")]
        question = [*history, HumanMessage("What is the weather in Bern?")]
        whole = self.chat.bind_tools([weather]).invoke(question)
        self.assertEqual([(c["name"], c["args"]) for c in whole.tool_calls], [("weather", {"place": "Bern", "days": 2})])
        total = None
        for chunk in self.chat.bind_tools([weather]).stream(question):
            total = chunk if total is None else total + chunk
        self.assertEqual([c["args"] for c in total.tool_calls], [{"place": "Bern", "days": 2}])

    def test_a_schema_by_a_call(self):
        bird = self.chat.with_structured_output(Bird, method="function_calling").invoke("Describe a raven.")
        self.assertIsInstance(bird, Bird)


if __name__ == "__main__":
    unittest.main(verbosity=2)

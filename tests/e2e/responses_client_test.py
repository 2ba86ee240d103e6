"""The `openai` package's responses against the server, with a real model, and /tokenize by its ids. Answers must have
all that the package's types require."""

import json
import unittest

import openai

from support import TOOL_SCHEMA, Server, ToolServer


class ResponsesClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "smol", "--api-key", "k1", "--api-key", "k2")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="k1", max_retries=0,
                                   _strict_response_validation=True)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def create(self, text="What is a raven?", client=None, **more):
        more = {"max_output_tokens": 12, "temperature": 0, **more}
        return (client or self.client).responses.create(model="smol", input=text, **more)

    def ask(self, path, body):
        status, _, answer = self.server.ask("POST", path, body, {"Authorization": "Bearer k1"})
        return status, json.loads(answer)

    def test_a_response(self):
        answer = self.create(metadata={"a": "b"}, instructions="Be brief.")
        self.assertEqual((answer.object, answer.model, answer.status), ("response", "smol", "incomplete"))
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")
        self.assertTrue(answer.output_text)
        self.assertEqual(answer.usage.output_tokens, 12)
        self.assertEqual((answer.metadata, answer.instructions), ({"a": "b"}, "Be brief."))
        whole = self.create("Say hi.", max_output_tokens=200)
        self.assertEqual(whole.status, "completed")
        chat = self.client.chat.completions.create(model="smol", messages=[{"role": "user", "content": "Say hi."}],
                                                   max_tokens=200, temperature=0)
        self.assertEqual(whole.output_text, chat.choices[0].message.content)

    def test_a_stream_is_the_same_as_not(self):
        whole = self.create(max_output_tokens=20)
        events = list(self.create(max_output_tokens=20, stream=True))
        types = [e.type for e in events]
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
        self.assertEqual(types[-4:], ["response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", "response.incomplete"])
        self.assertEqual(set(types[4:-4]), {"response.output_text.delta"})
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        self.assertEqual(events[-1].response.output_text, text)
        with self.client.responses.stream(model="smol", input="Say hi.", temperature=0, max_output_tokens=200) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().status, "completed")

    def test_a_conversation_goes_on(self):
        first = self.create("My name is Odin. What is a raven?")
        second = self.create("What is my name?", previous_response_id=first.id)
        self.assertEqual(second.previous_response_id, first.id)
        by_hand = self.create([{"role": "user", "content": "My name is Odin. What is a raven?"},
                               *[item.model_dump() for item in first.output],
                               {"role": "user", "content": "What is my name?"}])
        self.assertEqual(second.output_text, by_hand.output_text)
        self.assertEqual(second.usage.input_tokens, by_hand.usage.input_tokens)
        self.assertGreater(second.usage.input_tokens, self.create("What is my name?").usage.input_tokens + 20)

    def test_stored_ones(self):
        first = self.create()
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        other = self.client.with_options(api_key="k2")
        with self.assertRaises(openai.NotFoundError):
            other.responses.retrieve(first.id)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(previous_response_id=first.id)
        self.assertEqual(caught.exception.code, "previous_response_not_found")
        unkept = self.create(store=False)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(unkept.id)

    def test_no_room_for_stored_ones(self):
        with Server("--served-model-name", "smol", "--responses-store-bytes", "0") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            answer = self.create(client=client)
            self.assertFalse(answer.store)
            with self.assertRaises(openai.NotFoundError):
                client.responses.retrieve(answer.id)

    def test_refusals_name_the_field(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create([{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/a.png"}]}])
        self.assertEqual(caught.exception.param, "input[0].content[0].type")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(tools=[{"type": "web_search"}])
        self.assertEqual(caught.exception.param, "tools[0].type")

    def test_a_call_that_is_demanded(self):
        tool = {"type": "function", "name": "weather", "parameters": TOOL_SCHEMA, "strict": True}
        with ToolServer() as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0,
                                   _strict_response_validation=True)
            first = self.create(client=client, max_output_tokens=100, tools=[tool], tool_choice="required",
                                parallel_tool_calls=False)
            self.assertEqual([item.type for item in first.output], ["function_call"])
            self.assertEqual(set(json.loads(first.output[0].arguments)), {"place", "days"})
            result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
            second = self.create([result], client=client, tools=[tool], previous_response_id=first.id,
                                 tool_choice="none")
            self.assertEqual(second.output[0].type, "message")

    def test_tokens_there_and_back(self):
        text = "The capital of France is"
        status, answer = self.ask("/tokenize", {"prompt": text, "return_token_strs": True})
        self.assertEqual(status, 200)
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual(answer["token_strs"][:2], ["The", "\u0120capital"])
        self.assertEqual(self.ask("/detokenize", {"tokens": answer["tokens"]}), (200, {"prompt": text}))
        from_tokens = self.client.completions.create(model="smol", prompt=answer["tokens"], max_tokens=4, temperature=0)
        from_text = self.client.completions.create(model="smol", prompt=text, max_tokens=4, temperature=0)
        self.assertEqual(from_tokens.choices[0].text, from_text.choices[0].text)
        messages = [{"role": "user", "content": "hi"}]
        _, chat = self.ask("/tokenize", {"messages": messages})
        used = self.client.chat.completions.create(model="smol", messages=messages, max_tokens=1).usage
        self.assertEqual(chat["count"], used.prompt_tokens)
        self.assertTrue(self.ask("/detokenize", {"tokens": chat["tokens"]})[1]["prompt"].endswith(
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
        self.assertEqual(self.ask("/detokenize", {"tokens": [10**6]})[0], 400)

    def test_the_best_of_some(self):
        def draw(**more):
            return self.client.completions.create(model="smol", prompt="Once upon a time", max_tokens=8, temperature=1,
                                                  seed=3, **more)

        def mean(choice):
            return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

        ranked = sorted(draw(n=5, logprobs=0).choices, key=mean, reverse=True)
        best = draw(n=2, best_of=5)
        self.assertEqual([c.text for c in best.choices], [c.text for c in ranked[:2]])
        self.assertEqual(best.usage.completion_tokens, 40)


if __name__ == "__main__":
    unittest.main(verbosity=2)

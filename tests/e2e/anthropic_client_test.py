"""The `anthropic` package against the server, with a real model. Answers must have all that its types require."""

import unittest

import anthropic

from support import TOOL_SCHEMA, Server, ToolServer


class AnthropicClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The package has no `temperature` any more.
        cls.server = Server("--served-model-name", "smol", "--api-key", "k1",
                            "--override-generation-config", '{"temperature": 0}')
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="k1", max_retries=0,
                                         _strict_response_validation=True)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def ask(self, content="What is a raven?", method=None, **more):
        more = {"max_tokens": 12, "messages": [{"role": "user", "content": content}], **more}
        return (method or self.client.messages.create)(model="smol", **more)

    def test_a_message(self):
        answer = self.ask()
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", "smol"))
        self.assertIn("raven", answer.content[0].text.lower())
        self.assertEqual(answer.stop_reason, "max_tokens")
        self.assertEqual(answer.usage.output_tokens, 12)
        again = self.ask()
        self.assertEqual(again.content[0].text, answer.content[0].text)
        self.assertEqual(again.usage.input_tokens + again.usage.cache_read_input_tokens,
                         answer.usage.input_tokens + answer.usage.cache_read_input_tokens)

    def test_it_ends_by_itself(self):
        answer = self.ask("Say hi.", max_tokens=200)
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("end_turn", None))

    def test_a_stream_is_the_same_as_not(self):
        whole = self.ask(max_tokens=20)
        events = list(self.ask(max_tokens=20, stream=True))
        types = [e.type for e in events]
        self.assertEqual(types[:2], ["message_start", "content_block_start"])
        self.assertEqual(types[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(set(types[2:-3]), {"content_block_delta"})
        text = "".join(e.delta.text for e in events if e.type == "content_block_delta")
        self.assertEqual(text, whole.content[0].text)
        with self.ask(max_tokens=20, method=self.client.messages.stream) as stream:
            self.assertEqual("".join(stream.text_stream), text)
            final = stream.get_final_message()
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.stop_reason, "max_tokens")
        self.assertEqual(final.usage.output_tokens, 20)

    def test_stop_sequences(self):
        full = self.ask("Count from one to ten in words.", max_tokens=40).content[0].text
        stop = full[len(full) // 2:len(full) // 2 + 3]
        answer = self.ask("Count from one to ten in words.", max_tokens=40, stop_sequences=["never there", stop])
        self.assertEqual(answer.content[0].text, full[:full.index(stop)])
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", stop))

    def test_system_and_blocks(self):
        plain = self.ask("What is 2+2?", system="Answer in French.")
        blocks = self.ask([{"type": "text", "text": "What is 2+2?"}],
                          system=[{"type": "text", "text": "Answer in French.", "cache_control": {"type": "ephemeral"}}])
        self.assertEqual(blocks.content[0].text, plain.content[0].text)
        self.assertNotEqual(self.ask("What is 2+2?").content[0].text, plain.content[0].text)

    def test_a_conversation_with_a_tool(self):
        tool = {"name": "weather", "description": "The weather", "input_schema": {"type": "object"}}
        answer = self.ask(tools=[tool], tool_choice={"type": "none"}, messages=[
            {"role": "user", "content": "What is the weather?"},
            {"role": "assistant", "content": [{"type": "text", "text": "Let me see."},
                                              {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]}])
        self.assertEqual(answer.content[0].type, "text")

    def test_count_tokens(self):
        messages = [{"role": "user", "content": "What is a raven?"}]
        count = self.client.messages.count_tokens(model="smol", messages=messages)
        usage = self.ask().usage
        self.assertEqual(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)
        longer = self.client.messages.count_tokens(model="smol", messages=messages, system="Be brief.")
        self.assertNotEqual(longer.input_tokens, count.input_tokens)

    def test_errors_have_their_classes(self):
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            self.ask(method=self.client.with_options(api_key="k2").messages.create)
        self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="gpt-9", max_tokens=1, messages=[{"role": "user", "content": "a"}])
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask([{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}])
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("messages[0].content[0].type", str(caught.exception))

    def test_a_call_that_is_demanded(self):
        tool = {"name": "weather", "description": "The weather", "input_schema": TOOL_SCHEMA}
        # Or the model may think until its tokens are spent.
        flags = ("--reasoning-parser", "none", "--override-generation-config", '{"temperature": 0}')
        with ToolServer(*flags) as server:
            client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0,
                                         _strict_response_validation=True)
            for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
                answer = self.ask(method=client.messages.create, max_tokens=100, tools=[tool],
                                  tool_choice={**choice, "disable_parallel_tool_use": True})
                self.assertEqual([block.type for block in answer.content], ["tool_use"])
                self.assertEqual(answer.content[0].name, "weather")
                self.assertEqual(set(answer.content[0].input), {"place", "days"})
                self.assertEqual(answer.stop_reason, "tool_use")
            with self.ask(method=client.messages.stream, max_tokens=100, tools=[tool],
                          tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
                self.assertEqual(stream.get_final_message().content[0].input, answer.content[0].input)


if __name__ == "__main__":
    unittest.main(verbosity=2)

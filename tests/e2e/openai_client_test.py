"""The `openai` package against the server, with a real model."""

import concurrent.futures
import json
import math
import re
import struct
import typing
import unittest

import openai
import pydantic

from support import TOOL_SCHEMA, Server, ToolServer, model_path, run


# Its calls are short, whatever the model.
FORECAST = {"type": "function",
            "function": {"name": "weather", "parameters": TOOL_SCHEMA}}

TOOLS = [{"type": "function",
          "function": {"name": "weather", "description": "The weather of a place",
                       "parameters": {"type": "object", "properties": {"place": {"type": "string"},
                                                                       "days": {"type": "integer"}}}}}]


class Tools(unittest.TestCase):
    """A template with tools, and a model that was not trained on them: greedy, it copies what it was shown."""

    @classmethod
    def setUpClass(cls):
        cls.server = ToolServer()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def ask(self, question, **more):
        call = {"id": "1", "type": "function",
                "function": {"name": "weather", "arguments": '{"place": "Bern", "days": 2}'}}
        history = []
        for _ in range(4):  # so often that the model copies it
            history += [{"role": "user", "content": "What is the weather in Bern?"},
                        {"role": "assistant", "content": None, "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "1", "content": "sunny"}]
        return self.client.chat.completions.create(model="smol", temperature=0, max_tokens=60, tools=TOOLS,
                                                   messages=[*history, {"role": "user", "content": question}], **more)

    def test_the_server_says_what_it_parses(self):
        self.assertTrue(self.server.wait_log(r"tool calls: hermes; reasoning: qwen3"))

    def test_a_wrong_parser_is_named(self):
        for flag in ("--tool-call-parser", "--reasoning-parser"):
            ended = run("serve", model_path(), "--port", "0", flag, "x")
            self.assertEqual(ended.returncode, 1)
            self.assertIn(f"{flag}: 'x' is not known; there are auto, none", ended.stderr)

    def test_a_call_whole_and_streamed(self):
        whole = self.ask("What is the weather in Bern?").choices[0]
        self.assertEqual(whole.finish_reason, "tool_calls", whole)
        function = whole.message.tool_calls[0].function
        self.assertEqual(function.name, "weather")
        self.assertEqual(json.loads(function.arguments), {"place": "Bern", "days": 2})
        name, arguments, reason = "", "", None
        for chunk in self.ask("What is the weather in Bern?", stream=True):
            reason = chunk.choices[0].finish_reason or reason
            for piece in chunk.choices[0].delta.tool_calls or []:
                name += piece.function.name or ""
                arguments += piece.function.arguments or ""
        self.assertEqual((name, arguments, reason), ("weather", function.arguments, "tool_calls"))

    def test_a_call_that_is_demanded_is_well_formed(self):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            answer = self.client.chat.completions.create(
                model="smol", temperature=0, max_tokens=100, parallel_tool_calls=False, tool_choice=choice,
                tools=[FORECAST], messages=[{"role": "user", "content": "What is a raven?"}]).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls", answer)
            self.assertIsNone(answer.message.content)
            self.check_arguments(answer.message.tool_calls[0].function)

    def check_arguments(self, function):
        self.assertEqual(function.name, "weather")
        arguments = json.loads(function.arguments)
        self.assertEqual(set(arguments), {"place", "days"})
        self.assertLessEqual(len(arguments["place"]), 16)
        self.assertIn(arguments["days"], range(1, 8))

    def test_variables_reach_the_template(self):
        def tokens(**kwargs):
            body = {"chat_template_kwargs": kwargs} if kwargs else {}
            return self.ask("Hi", extra_body=body).usage.prompt_tokens

        self.assertEqual(tokens(enable_thinking=True), tokens() + 1)

    def test_tools_reach_the_template(self):
        self.assertLess(self.ask("Hi", tool_choice="none").usage.prompt_tokens, self.ask("Hi").usage.prompt_tokens)


class Bird(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=24)
    age: int = pydantic.Field(ge=0, le=120)
    sings: bool
    colours: list[typing.Literal["black", "white", "red"]] = pydantic.Field(max_length=3)


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "smol", "--api-key", "k1", "--max-num-seqs", "40",
                            "--pooling", "mean")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="k1", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def chat(self, text="What is a raven?", **more):
        more = {"max_tokens": 12, "temperature": 0, **more}
        return self.client.chat.completions.create(model="smol", messages=[{"role": "user", "content": text}],
                                                   **more)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([m.id for m in models], ["smol"])
        self.assertEqual(self.client.models.retrieve("smol").id, "smol")

    def test_embeddings(self):
        texts = ["A raven is a large black bird.", "Ravens are big birds with black feathers.",
                 "The quarterly report shows higher interest rates."]
        answer = self.client.embeddings.create(model="smol", input=texts)
        self.assertEqual([e.index for e in answer.data], [0, 1, 2])
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens)
        vectors = [e.embedding for e in answer.data]  # the client asks for base64
        for text, vector in zip(texts, vectors):
            self.assertEqual(len(vector), 576)
            self.assertAlmostEqual(sum(v * v for v in vector), 1, places=5)
            alone = self.client.embeddings.create(model="smol", input=text, encoding_format="float")
            self.assertEqual([struct.unpack("f", struct.pack("f", v))[0] for v in alone.data[0].embedding], vector)

        def likeness(i, j):
            return sum(a * b for a, b in zip(vectors[i], vectors[j]))

        self.assertGreater(likeness(0, 1), likeness(0, 2))
        self.assertGreater(likeness(0, 1), likeness(1, 2))

    def test_many_embeddings_at_once(self):
        texts = [f"The number {i} and then some words " + "more " * (i % 7) for i in range(150)]
        many = self.client.embeddings.create(model="smol", input=texts).data
        for i in (0, 77, 149):
            self.assertEqual(self.client.embeddings.create(model="smol", input=texts[i]).data[0].embedding,
                             many[i].embedding)

    def test_chat(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertIn("raven", choice.message.content.lower())
        self.assertEqual(choice.finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 12)

    def test_chat_ends_by_itself(self):
        answer = self.chat("Say hi.", max_tokens=200)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertNotIn("<|im_end|>", answer.choices[0].message.content)

    def test_stream_is_the_same_as_not(self):
        whole = self.chat(max_tokens=20)
        chunks = list(self.chat(max_tokens=20, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual(reasons[:-1], [None] * (len(reasons) - 1))
        self.assertEqual(reasons[-1], "length")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 20)
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_completion_of_text_and_tokens(self):
        text = self.client.completions.create(model="smol", prompt="The capital of France is", max_tokens=6,
                                              temperature=0)
        self.assertIn("Paris", text.choices[0].text)
        several = self.client.completions.create(
            model="smol", prompt=["The capital of France is", "One, two, three,"], max_tokens=6, temperature=0)
        self.assertEqual(several.choices[0].text, text.choices[0].text)
        self.assertIn("four", several.choices[1].text)
        tokens = self.client.completions.create(model="smol", prompt=[504, 3575, 282], max_tokens=4,
                                                temperature=0)
        self.assertEqual(tokens.usage.prompt_tokens, 3)

    def test_seed_decides(self):
        def draw(seed):
            return self.chat("Tell me a story.", temperature=1.5, seed=seed, max_tokens=16)

        first = draw(7).choices[0].message.content
        self.assertEqual(draw(7).choices[0].message.content, first)
        self.assertNotEqual(draw(8).choices[0].message.content, first)

    def test_chat_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=3, max_tokens=5)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 5)
        self.assertEqual("".join(t.token for t in content), answer.choices[0].message.content)
        for token in content:
            self.assertEqual(bytes(token.bytes).decode(), token.token)
            self.assertEqual(len(token.top_logprobs), 3)
            best = token.top_logprobs[0]
            # At temperature 0 the most likely token is the one that is taken.
            self.assertEqual((best.token, best.logprob), (token.token, token.logprob))
            self.assertLessEqual(sum(math.exp(t.logprob) for t in token.top_logprobs), 1 + 1e-4)
            self.assertEqual(sorted((t.logprob for t in token.top_logprobs), reverse=True),
                             [t.logprob for t in token.top_logprobs])

    def test_completion_logprobs(self):
        answer = self.client.completions.create(model="smol", prompt="One, two,", max_tokens=4, temperature=0,
                                                logprobs=2)
        logprobs = answer.choices[0].logprobs
        self.assertEqual("".join(logprobs.tokens), answer.choices[0].text)
        self.assertEqual(len(logprobs.token_logprobs), 4)
        self.assertEqual(logprobs.text_offset[0], 0)
        self.assertEqual(logprobs.text_offset[1], len(logprobs.tokens[0]))
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
            self.assertAlmostEqual(top[token], logprob)

    def test_streamed_logprobs(self):
        whole = self.chat(logprobs=True, max_tokens=6).choices[0].logprobs.content
        streamed = []
        for chunk in self.chat(logprobs=True, max_tokens=6, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        self.assertEqual(streamed, whole)

    def test_stop_strings(self):
        full = self.chat("Count from one to ten in words.", max_tokens=40).choices[0].message.content
        stop = full[len(full) // 2:len(full) // 2 + 3]
        cut = full[:full.index(stop)]
        answer = self.chat("Count from one to ten in words.", max_tokens=40, stop=[stop, "never there"])
        self.assertEqual(answer.choices[0].message.content, cut)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertLess(answer.usage.completion_tokens, 40)
        streamed = self.chat("Count from one to ten in words.", max_tokens=40, stop=stop, stream=True)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in streamed), cut)

    def test_ignore_eos(self):
        answer = self.chat("Say hi.", max_tokens=60, extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.completion_tokens, 60)

    def test_penalties_and_bans(self):
        def say(prompt="One, two, three, one, two, three, one, two,", **more):
            return self.client.completions.create(model="smol", prompt=prompt, temperature=0, max_tokens=24,
                                                  **more).choices[0].text

        plain = say()
        self.assertGreater(plain.count("two"), 2, plain)
        for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repetition_penalty": 1.8}}):
            self.assertNotEqual(say(**penalty), plain)
        self.assertEqual(say(frequency_penalty=0, extra_body={"repetition_penalty": 1}), plain)
        self.assertNotIn(" two", say(extra_body={"bad_words": ["two"]}))

    def test_logit_bias(self):
        # Greedy, so the favoured token wins each time.
        answer = self.chat(max_tokens=3, logprobs=True, logit_bias={"3575": 100})
        tokens = {t.token for t in answer.choices[0].logprobs.content}
        self.assertEqual(len(tokens), 1)
        # Log-probabilities are the model's, without the bias.
        self.assertLess(answer.choices[0].logprobs.content[0].logprob, -1)

    def test_a_schema_is_followed(self):
        def bird(seed):
            return self.client.chat.completions.parse(
                model="smol", messages=[{"role": "user", "content": "Describe a bird in JSON."}], response_format=Bird,
                temperature=1.2, seed=seed, max_tokens=300).choices[0]

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            birds = list(threads.map(bird, range(20)))
        for choice in birds:
            self.assertEqual(choice.finish_reason, "stop", choice.message.content)
            self.assertIsInstance(choice.message.parsed, Bird)
            self.assertEqual(list(json.loads(choice.message.content)), ["name", "age", "sings", "colours"])
        self.assertGreater(len({choice.message.content for choice in birds}), 10)
        # The others in the batch change nothing.
        self.assertEqual(bird(7).message.content, birds[7].message.content)

    def test_grammars_of_each_kind(self):
        def say(**more):
            choice = self.client.completions.create(model="smol", prompt="The sky is", temperature=1, seed=3, max_tokens=60,
                                                    extra_body=more).choices[0]
            return choice.finish_reason, choice.text

        self.assertEqual(say(structured_outputs={"choice": [" of the colour lead"]}), ("stop", " of the colour lead"))
        reason, text = say(structured_outputs={"regex": "[a-f]{3,9}-[0-9]{2}"})
        self.assertEqual(reason, "stop")
        self.assertRegex(text, r"\A[a-f]{3,9}-[0-9]{2}\Z")
        reason, text = say(guided_grammar='root ::= "(" root ")" | [0-9] [0-9]')
        self.assertEqual(text.count("("), text.count(")") if reason == "stop" else text.count("("))
        reason, text = say(response_format={"type": "json_object"})
        self.assertTrue(text.lstrip().startswith("{"))
        # The end comes where the grammar allows nothing else, whatever asks for more.
        for more in ({"ignore_eos": True}, {"min_tokens": 50}):
            reason, text = say(structured_outputs={"regex": "[0-9]{4}"}, **more)
            self.assertEqual(reason, "stop")
            self.assertTrue(re.fullmatch("[0-9]{4}", text), text)
        reason, text = say(structured_outputs={"regex": "[0-9]+"}, ignore_eos=True)
        self.assertEqual(reason, "length")

    def test_a_grammar_that_is_none_is_named(self):
        for field, value in (("guided_regex", "[a"), ("guided_json", {"type": "wrong"}), ("guided_regex", "(a{999}){999}")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.completions.create(model="smol", prompt="x", extra_body={field: value})
            self.assertEqual(caught.exception.param, field)

    def test_min_tokens(self):
        short = self.chat("Say hi.", max_tokens=300).usage.completion_tokens
        longer = self.chat("Say hi.", max_tokens=300, extra_body={"min_tokens": short + 20})
        self.assertGreaterEqual(longer.usage.completion_tokens, short + 20)

    def test_cuts_leave_what_is_likely(self):
        first = self.chat().choices[0].message.content
        # Each leaves only the most likely token, whatever the temperature.
        self.assertEqual(self.chat(temperature=2, extra_body={"min_p": 1}).choices[0].message.content, first)
        self.assertEqual(self.chat(temperature=2, extra_body={"top_k": 1}).choices[0].message.content, first)
        self.assertEqual(self.chat(temperature=2, top_p=1e-9).choices[0].message.content, first)

    def test_n_choices(self):
        ask = {"temperature": 1.2, "seed": 3, "max_tokens": 8}
        answer = self.chat("Tell me about rivers. " * 20, n=3, **ask)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        texts = [c.message.content for c in answer.choices]
        self.assertEqual(len(set(texts)), 3)
        alone = [self.chat("Tell me about rivers. " * 20, **{**ask, "seed": 3 + i}) for i in range(3)]
        self.assertEqual([a.choices[0].message.content for a in alone], texts)
        self.assertEqual(answer.usage.prompt_tokens, alone[0].usage.prompt_tokens)
        self.assertEqual(answer.usage.completion_tokens, sum(a.usage.completion_tokens for a in alone))

    def test_n_computes_the_prompt_once(self):
        before = self.server.metric("prefix_cache_hits_total")
        prompt = "The river that is asked for only here flows to the sea. " * 20
        usage = self.chat(prompt, n=4, max_tokens=2, extra_body={"cache_salt": "n"}).usage
        hits = self.server.metric("prefix_cache_hits_total") - before
        self.assertGreater(hits, 3 * (usage.prompt_tokens - 65))

    def test_prompt_logprobs_score_a_text(self):
        def complete(prompt, **more):
            return self.client.completions.create(model="smol", prompt=prompt, temperature=0, **more)

        text = "The capital of France is Paris. The capital of Italy is"
        generated = complete(text, max_tokens=4, logprobs=2).choices[0]
        scored = complete(text + generated.text, max_tokens=0, logprobs=2, echo=True)
        choice = scored.choices[0]
        self.assertEqual(choice.text, text + generated.text)
        self.assertEqual(scored.usage.completion_tokens, 0)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        # What was generated has the log-probabilities that it had then, bit for bit.
        self.assertEqual(choice.logprobs.token_logprobs[-4:], generated.logprobs.token_logprobs)
        self.assertEqual(choice.logprobs.top_logprobs[-4:], generated.logprobs.top_logprobs)
        # And again, with the prompt in the cache, as lm-eval asks: with one more token.
        again = complete(text + generated.text, max_tokens=1, logprobs=2, echo=True)
        self.assertEqual(again.choices[0].logprobs.token_logprobs[:-1], choice.logprobs.token_logprobs)
        self.assertEqual(again.usage.prompt_tokens_details.cached_tokens, 0)

        whole = complete(text, max_tokens=1, extra_body={"prompt_logprobs": 1}).choices[0].prompt_logprobs
        self.assertIsNone(whole[0])
        self.assertEqual(len(whole), scored.usage.prompt_tokens - 4)
        for entry, logprob in zip(whole[1:], choice.logprobs.token_logprobs[1:]):
            self.assertIn(logprob, [e["logprob"] for e in entry.values()])
            self.assertIn(1, [e["rank"] for e in entry.values()])

    def test_openapi(self):
        status, _, body = self.server.ask("GET", "/openapi.json")
        self.assertEqual(status, 200)
        fields = json.loads(body)["components"]["schemas"]["ChatCompletionRequest"]["properties"]
        self.assertEqual(fields["temperature"]["maximum"], 2)

    def test_prefix_reuse_is_reported(self):
        text = "The raven is a large black bird. " * 30
        first = self.chat(text, max_tokens=2, extra_body={"cache_salt": "reuse"})
        again = self.chat(text, max_tokens=2, extra_body={"cache_salt": "reuse"})
        other = self.chat(text, max_tokens=2, extra_body={"cache_salt": "another"})
        self.assertEqual(first.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 100)
        self.assertEqual(other.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(again.choices[0].message.content, first.choices[0].message.content)

    def test_cache_salt_parts_the_cache(self):
        # Salts of this test alone: whatever else ran has left nothing for them. The last asks without one.
        text = "A salt keeps what one client has asked from the others. " * 20

        def complete(**more):
            return self.client.completions.create(model="smol", prompt=text, max_tokens=2, temperature=0, **more)

        def whole(ask, salt):
            return ask(extra_body={} if salt is None else {"cache_salt": salt}).usage

        def streamed(ask, salt):
            chunks = list(ask(stream=True, stream_options={"include_usage": True},
                              extra_body={} if salt is None else {"cache_salt": salt}))
            return chunks[-1].usage

        for name, ask in (("chat", lambda **more: self.chat(text, **more)), ("completion", complete)):
            for how in (whole, streamed):
                one, other = f"{name} {how.__name__} 1", f"{name} {how.__name__} 2"
                cached = [how(ask, salt).prompt_tokens_details.cached_tokens for salt in (one, other, one, other)]
                self.assertEqual(cached[:2], [0, 0], name)
                self.assertGreater(min(cached[2:]), 100, name)
            # No salt, and one that is empty, are the same, and are not any of those before.
            cached = [how(ask, salt).prompt_tokens_details.cached_tokens
                      for how, salt in ((whole, None), (whole, ""), (streamed, ""), (streamed, None))]
            self.assertEqual(cached[0], 0, name)
            self.assertGreater(min(cached[1:]), 100, name)
        for ask in (complete, self.chat):
            with self.assertRaises(openai.BadRequestError) as caught:
                ask(extra_body={"cache_salt": "s" * 1025})
            self.assertEqual(caught.exception.param, "cache_salt")

    def test_32_streams_at_once_say_what_each_says_alone(self):
        def ask(i):
            chunks = self.chat(f"Tell me about the number {i}.", max_tokens=8 + i % 5, temperature=0.8, seed=i,
                               stream=True)
            return "".join(c.choices[0].delta.content or "" for c in chunks)

        alone = {i: ask(i) for i in range(0, 32, 5)}
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            together = list(pool.map(ask, range(32)))
        self.assertTrue(all(together))
        for i, text in alone.items():
            self.assertEqual(together[i], text)

    def test_errors_are_the_clients_exceptions(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=5)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tools=TOOLS)
        self.assertEqual(caught.exception.param, "tools")
        self.assertIn("has no tools", caught.exception.body["message"])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tools=[*TOOLS, {"type": "function", "function": {"name": "a b"}}])
        self.assertEqual(caught.exception.param, "tools[1].function.name")
        self.assertEqual(self.chat(tools=TOOLS, tool_choice="none").choices[0].message.tool_calls, None)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("word " * 9000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertGreater(caught.exception.body["n_prompt_tokens"], 8192)
        self.assertEqual(caught.exception.body["n_ctx"], 8192)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(max_tokens=8192)
        self.assertIn("at most", caught.exception.message)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong", max_retries=0).models.list()

    def test_closing_a_stream_cancels(self):
        before = self.server.metric("request_success_total", finished_reason="abort")
        stream = self.chat("Tell me a very long story.", max_tokens=4000, stream=True,
                           extra_body={"ignore_eos": True})
        for _ in range(3):
            next(stream)
        stream.close()
        self.server.wait_metric("request_success_total", before + 1, finished_reason="abort")
        self.server.wait_metric("num_requests_running", 0)


class Defaults(unittest.TestCase):
    """How requests are sampled that do not say."""

    def say(self, server, **more):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        messages = [{"role": "user", "content": "Tell me a story."}]
        return client.chat.completions.create(model="smol", messages=messages, max_tokens=24, **more) \
            .choices[0].message.content

    def test_a_model_that_says_nothing(self):
        with Server("--served-model-name", "smol") as server:
            self.assertTrue(server.wait_log(r"sampling: temperature 0.7, min_p 0.05 \(the model says nothing\)"))
            self.assertNotEqual(self.say(server), self.say(server), "each has a seed of its own")
            same = self.say(server, seed=5, temperature=0.7, extra_body={"min_p": 0.05})
            self.assertEqual(self.say(server, seed=5), same)

    def test_override(self):
        config = '{"temperature": 0, "repetition_penalty": 1.3}'
        with Server("--served-model-name", "smol", "--override-generation-config", config) as server:
            self.assertTrue(server.wait_log(r"sampling: temperature 0, min_p 0.05, repetition_penalty 1.3"))
            first = self.say(server)
            self.assertEqual(self.say(server), first)
            self.assertEqual(self.say(server, temperature=0, extra_body={"repetition_penalty": 1.3}), first)
            self.assertNotEqual(self.say(server, extra_body={"repetition_penalty": 1}), first)

    def test_a_wrong_override_is_named(self):
        for config, what in (('{"temperature": 9}', "'temperature' must be a number from 0 to 2"),
                             ('{"seed": 9}', "'seed' is not known: there are temperature, top_p"), ("[]", "JSON object")):
            result = run("serve", "no-such-model", "--override-generation-config", config)
            self.assertEqual(result.returncode, 1)
            self.assertIn("--override-generation-config: ", result.stderr)
            self.assertIn(what, result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)

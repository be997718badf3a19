"""The official `openai` package with a vendor of the chat format, and with one of the messages format."""

import base64
import json
import struct
import unittest
from decimal import Decimal

import openai

import gateway

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Погода в городе",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def user(content):
    return {"role": "user", "content": content}


class OpenAi(gateway.Suite):
    sdk = openai
    model = "demo-chat"
    other_model = "demo-messages"
    tokens_max = 3
    # Parameters without a counterpart in the messages format, and below them parameters that have one.
    dropped = {
        "seed": 7,
        "store": False,
        "metadata": {"department": "sales"},
        "logit_bias": {"50256": -100},
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "verbosity": "low",
        "prompt_cache_key": "sdk-tests",
        "user": "sdk-tests",
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "response_format": {"type": "text"},
    }

    def client(self, secret, **options):
        self.wire = gateway.Wire(openai)
        return openai.OpenAI(
            api_key=secret, base_url=gateway.URL + "/v1", http_client=self.wire.http_client, timeout=20, **options
        )

    def ask(self, client, text="Привет", **params):
        request = {"model": self.model, "messages": [user(text)], "max_tokens": 500}
        return client.chat.completions.create(**{**request, **params})

    def classes(self, usage):
        # `prompt_tokens` includes tokens read from and written to the cache.
        details = usage.prompt_tokens_details
        cached = getattr(details, "cached_tokens", None) or 0
        written = getattr(details, "cache_write_tokens", None) or 0
        return {
            "input": usage.prompt_tokens - cached - written,
            "cached_input": cached,
            "cache_write": written,
            "output": usage.completion_tokens,
        }

    def read(self, stream):
        """Text, tool calls, fragments of arguments, finish reason and usage of a stream."""
        texts, calls, fragments, finish, usages, ids = [], {}, 0, None, [], set()
        for chunk in stream:
            ids.add(chunk.id)
            self.assertEqual(chunk.object, "chat.completion.chunk")
            if chunk.usage:
                usages.append(chunk.usage)
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    texts.append(choice.delta.content)
                for delta in choice.delta.tool_calls or []:
                    call = calls.setdefault(delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""})
                    call["arguments"] += delta.function.arguments or ""
                    fragments += bool(delta.function.arguments)
        self.assertEqual(len(ids), 1, "chunks of one answer with different ids")
        return texts, [calls[index] for index in sorted(calls)], fragments, finish, usages

    def test_plain_answer_is_charged_at_the_catalogs_prices(self):
        answer = self.ask(self.asker)
        self.assertEqual(answer.object, "chat.completion")
        self.assertTrue(answer.id)
        self.assertIsInstance(answer.created, int)
        self.assertTrue(answer.model)
        self.assertEqual(answer._request_id, self.wire.number)
        choice = answer.choices[0]
        self.assertEqual((choice.index, choice.message.role, choice.finish_reason), (0, "assistant", "stop"))
        self.assertEqual(choice.message.content, "Вы написали: Привет")
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assert_spent(self.assert_charged(self.classes(answer.usage)))

    def test_streamed_answer_equals_the_plain_one_and_is_charged(self):
        text = "Расскажи, как сложить печь"
        plain = self.ask(self.asker, text)
        first = self.assert_charged(self.classes(plain.usage))
        texts, _, _, finish, usages = self.read(self.ask(self.asker, text, **STREAMED))
        self.assertEqual("".join(texts), plain.choices[0].message.content)
        self.assertGreater(len(texts), 1, "the answer came in one piece")
        self.assertEqual((finish, len(usages)), ("stop", 1))
        self.assert_spent(first, self.assert_charged(self.classes(usages[0])))

    def test_stream_has_no_usage_unless_requested_and_is_charged_nevertheless(self):
        plain = self.ask(self.asker)
        first = self.assert_charged(self.classes(plain.usage))
        chunks = list(self.ask(self.asker, stream=True))
        self.assertTrue(all(chunk.choices for chunk in chunks), "a chunk without choices that nobody asked for")
        self.assertFalse([chunk for chunk in chunks if chunk.usage], "usage that nobody asked for")
        self.assert_spent(first, self.assert_charged(self.classes(plain.usage)))

    def test_tool_call_and_its_result(self):
        self.tools("Погода?", 1)

    def test_parallel_tool_calls_and_their_results(self):
        self.tools("parallel: погода?", 2)

    def tools(self, text, count):
        asked = [user(text)]
        answer = self.ask(self.asker, messages=asked, tools=[WEATHER])
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        calls = answer.choices[0].message.tool_calls
        self.assertEqual(len({call.id for call in calls}), count)
        for call in calls:
            self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
            self.assertEqual(json.loads(call.function.arguments), {"city": "Москва"})
        charges = [self.assert_charged(self.classes(answer.usage))]
        results = [{"role": "tool", "tool_call_id": call.id, "content": "+7 и снег"} for call in calls]
        turn = answer.choices[0].message.model_dump(exclude_none=True)
        final = self.ask(self.asker, messages=[*asked, turn, *results], tools=[WEATHER])
        self.assertIn("+7 и снег", final.choices[0].message.content)
        self.assertEqual(final.choices[0].finish_reason, "stop")
        charges.append(self.assert_charged(self.classes(final.usage)))
        self.assert_spent(*charges)

    def test_streamed_tool_call_and_its_result(self):
        self.streamed_tools("Погода?", 1)

    def test_streamed_parallel_tool_calls_and_their_results(self):
        self.streamed_tools("parallel: погода?", 2)

    def streamed_tools(self, text, count):
        asked = [user(text)]
        options = {"tools": [WEATHER], **STREAMED}
        _, calls, fragments, finish, usages = self.read(self.ask(self.asker, messages=asked, **options))
        self.assertEqual(finish, "tool_calls")
        self.assertEqual(len({call["id"] for call in calls}), count)
        self.assertGreaterEqual(fragments, 2 * count, "arguments came in one piece")
        for call in calls:
            self.assertEqual((call["name"], json.loads(call["arguments"])), ("get_weather", {"city": "Москва"}))
        charges = [self.assert_charged(self.classes(usages[-1]))]
        turn = {
            "role": "assistant",
            "tool_calls": [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                for call in calls
            ],
        }
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "+7 и снег"} for call in calls]
        texts, _, _, finish, usages = self.read(self.ask(self.asker, messages=[*asked, turn, *results], **options))
        self.assertIn("+7 и снег", "".join(texts))
        self.assertEqual(finish, "stop")
        charges.append(self.assert_charged(self.classes(usages[-1])))
        self.assert_spent(*charges)

    def test_streaming_helper_collects_the_whole_answer(self):
        with self.asker.chat.completions.stream(
            model=self.model, messages=[user("Привет")], max_tokens=500, stream_options={"include_usage": True}
        ) as stream:
            answer = stream.get_final_completion()
        self.assertEqual(answer.choices[0].message.content, "Вы написали: Привет")
        self.assert_spent(self.assert_charged(self.classes(answer.usage)))

    def test_streaming_helper_collects_tool_calls(self):
        with self.asker.chat.completions.stream(
            model=self.model, messages=[user("parallel: погода?")], max_tokens=500, tools=[WEATHER]
        ) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            choice = stream.get_final_completion().choices[0]
        self.assertEqual([event.name for event in done], ["get_weather", "get_weather"])
        self.assertEqual(choice.finish_reason, "tool_calls")
        for call in choice.message.tool_calls:
            self.assertEqual(json.loads(call.function.arguments), {"city": "Москва"})

    def test_answer_that_reaches_max_tokens_has_the_finish_reason_length(self):
        self.length("max_tokens")

    def test_answer_that_reaches_max_completion_tokens_has_the_finish_reason_length(self):
        self.length("max_completion_tokens")

    def length(self, field):
        params = {"max_tokens": openai.NOT_GIVEN, field: self.tokens_max}
        text = "раз " * self.tokens_max
        # Two words of the answer come from the vendor's script.
        cut = "Вы написали: " + "раз " * (self.tokens_max - 2)
        plain = self.ask(self.asker, text, **params)
        self.assertEqual((plain.choices[0].message.content, plain.choices[0].finish_reason), (cut, "length"))
        first = self.assert_charged(self.classes(plain.usage))
        texts, _, _, finish, usages = self.read(self.ask(self.asker, text, **params, **STREAMED))
        self.assertEqual(("".join(texts), finish), (cut, "length"))
        self.assert_spent(first, self.assert_charged(self.classes(usages[-1])))

    def test_answer_without_an_output_maximum_is_complete(self):
        answer = self.ask(self.asker, max_tokens=openai.NOT_GIVEN)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assert_spent(self.assert_charged(self.classes(answer.usage)))

    def test_answer_ends_before_a_stop_sequence(self):
        for stop in ("СТОП", ["другое", "СТОП"]):
            plain = self.ask(self.asker, "до СТОП после", stop=stop).choices[0]
            self.assertEqual((plain.message.content, plain.finish_reason), ("Вы написали: до ", "stop"))
            texts, _, _, finish, _ = self.read(self.ask(self.asker, "до СТОП после", stop=stop, **STREAMED))
            self.assertEqual(("".join(texts), finish), ("Вы написали: до ", "stop"))

    def test_instructions_reach_the_model_in_order(self):
        turns = [
            {"role": "system", "content": "Ты краток."},
            {"role": "developer", "content": [{"type": "text", "text": "Отвечай по-русски."}]},
            user("say-system"),
        ]
        answer = self.ask(self.asker, messages=turns)
        self.assertEqual(answer.choices[0].message.content, "Система: Ты краток.\nОтвечай по-русски.")

    def test_image_is_sent_together_with_a_text(self):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PIXEL, "detail": "low"}}
        answer = self.ask(self.asker, messages=[user([image, {"type": "text", "text": "Что это?"}])])
        self.assertEqual(answer.choices[0].message.content, "Вы написали: Что это?")

    def test_cut_stream_does_not_look_complete(self):
        self.assert_cut(lambda stream: self.read(stream)[3] is not None)


class OpenAiTranslated(OpenAi):
    """The same promises with a vendor of the messages format."""

    model, other_model = OpenAi.other_model, OpenAi.model
    translated = True


class OpenAiToResponses(OpenAi):
    """The same promises with a vendor of the responses format."""

    model, other_model = "demo-responses", OpenAi.model
    translated = True
    # Vendors of this format accept no lower maximum.
    tokens_max = 16

    def test_answer_ends_before_a_stop_sequence(self):
        """The responses format has no stop sequences. A refusal is better than an answer that does not stop."""
        with self.assertRaises(openai.BadRequestError) as refused:
            self.ask(self.asker, stop="СТОП")
        self.assertIn("«stop»", str(refused.exception))
        self.assert_spent()


class Embeddings(unittest.TestCase):
    """Vectors in the package's default encoding (base64, which it decodes) and as floats."""

    def setUp(self):
        self.key = gateway.Key()
        self.wire = gateway.Wire(openai)
        self.client = openai.OpenAI(
            api_key=self.key.secret,
            base_url=gateway.URL + "/v1",
            http_client=self.wire.http_client,
            timeout=20,
            max_retries=0,
        )

    def charged(self, answer):
        receipt = self.key.receipt(self.wire.number)
        self.assertEqual(receipt["usage"]["input"], answer.usage.prompt_tokens)
        charged = Decimal(receipt["charged_rub"])
        self.assertEqual(charged, gateway.cost("demo-embedding", receipt["usage"]))
        self.assertGreater(charged, 0)
        return charged

    def test_vectors_are_the_same_in_base64_and_as_floats_and_charged(self):
        charges = []
        for asked, count in (
            ("Привет", 1),
            (["Привет", "мир"], 2),
            ([1, 2, 3], 1),
            ([[1, 2], [3]], 2),
        ):
            vectors = []
            for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
                answer = self.client.embeddings.create(model="demo-embedding", input=asked, **more)
                self.assertEqual([item.index for item in answer.data], list(range(count)))
                vectors.append([decoded(item.embedding) for item in answer.data])
                charges.append(self.charged(answer))
            self.assertEqual(vectors[0], vectors[1])
            self.assertEqual(vectors[0], vectors[2])
        self.assertEqual(self.key.spent(), sum(charges))

    def test_dimensions_set_the_length_of_a_vector(self):
        answer = self.client.embeddings.create(model="demo-embedding", input="Привет", dimensions=8, user="sdk-tests")
        self.assertEqual(len(answer.data[0].embedding), 8)

    def test_chat_model_is_refused_for_embeddings(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.embeddings.create(model="demo-chat", input="Привет")
        self.assertIn("/v1/chat/completions", str(caught.exception))

    def test_models_show_their_kind_and_their_paths(self):
        told = {model.id: (model.kind, model.surfaces) for model in self.client.models.list()}
        self.assertEqual(told["demo-embedding"], ("embedding", ["/v1/embeddings"]))
        self.assertEqual(told["demo-chat"][0], "chat")
        self.assertIn("/v1/chat/completions", told["demo-chat"][1])


def decoded(vector):
    """Floats of an explicit base64 answer, which the package does not decode."""
    if isinstance(vector, str):
        data = base64.b64decode(vector)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    return list(vector)


if __name__ == "__main__":
    gateway.main(OpenAi, OpenAiTranslated, OpenAiToResponses, Embeddings)

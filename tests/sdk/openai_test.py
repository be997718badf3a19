"""The official `openai` package against a vendor of the chat format."""

import json

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


def classes(usage):
    """Tokens by rate class: `prompt_tokens` contains what was read from and written to the cache."""
    details = usage.prompt_tokens_details
    cached = getattr(details, "cached_tokens", None) or 0
    written = getattr(details, "cache_write_tokens", None) or 0
    return {
        "input": usage.prompt_tokens - cached - written,
        "cached_input": cached,
        "cache_write": written,
        "output": usage.completion_tokens,
    }


def user(text):
    return {"role": "user", "content": text}


class OpenAi(gateway.Suite):
    sdk = openai
    model = "demo-chat"
    other_model = "demo-messages"

    def client(self, secret, **options):
        self.wire = gateway.Wire(openai)
        return openai.OpenAI(
            api_key=secret, base_url=gateway.URL + "/v1", http_client=self.wire.http_client, timeout=20, **options
        )

    def ask(self, client, text="Привет", **params):
        request = {"model": self.model, "messages": [user(text)], "max_tokens": 500}
        return client.chat.completions.create(**{**request, **params})

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

    def test_plain_answer_is_charged_by_the_catalog(self):
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
        self.assert_spent(self.assert_charged(classes(answer.usage)))

    def test_streamed_answer_is_the_plain_one_and_charged(self):
        text = "Расскажи, как сложить печь"
        plain = self.ask(self.asker, text)
        first = self.assert_charged(classes(plain.usage))
        stream = self.ask(self.asker, text, stream=True, stream_options={"include_usage": True})
        texts, _, _, finish, usages = self.read(stream)
        self.assertEqual("".join(texts), plain.choices[0].message.content)
        self.assertGreater(len(texts), 1, "the answer came in one piece")
        self.assertEqual((finish, len(usages)), ("stop", 1))
        self.assert_spent(first, self.assert_charged(classes(usages[0])))

    def test_stream_has_no_usage_unless_asked_and_is_charged_all_the_same(self):
        plain = self.ask(self.asker)
        first = self.assert_charged(classes(plain.usage))
        chunks = list(self.ask(self.asker, stream=True))
        self.assertTrue(all(chunk.choices for chunk in chunks), "a chunk without choices that nobody asked for")
        self.assertFalse([chunk for chunk in chunks if chunk.usage], "usage that nobody asked for")
        self.assert_spent(first, self.assert_charged(classes(plain.usage)))

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
        charges = [self.assert_charged(classes(answer.usage))]
        results = [{"role": "tool", "tool_call_id": call.id, "content": "+7 и снег"} for call in calls]
        turn = answer.choices[0].message.model_dump(exclude_none=True)
        final = self.ask(self.asker, messages=[*asked, turn, *results], tools=[WEATHER])
        self.assertIn("+7 и снег", final.choices[0].message.content)
        self.assertEqual(final.choices[0].finish_reason, "stop")
        charges.append(self.assert_charged(classes(final.usage)))
        self.assert_spent(*charges)

    def test_streamed_tool_call_and_its_result(self):
        self.streamed_tools("Погода?", 1)

    def test_streamed_parallel_tool_calls_and_their_results(self):
        self.streamed_tools("parallel: погода?", 2)

    def streamed_tools(self, text, count):
        asked = [user(text)]
        options = {"tools": [WEATHER], "stream": True, "stream_options": {"include_usage": True}}
        _, calls, fragments, finish, usages = self.read(self.ask(self.asker, messages=asked, **options))
        self.assertEqual(finish, "tool_calls")
        self.assertEqual(len({call["id"] for call in calls}), count)
        self.assertGreaterEqual(fragments, 2 * count, "arguments came in one piece")
        for call in calls:
            self.assertEqual((call["name"], json.loads(call["arguments"])), ("get_weather", {"city": "Москва"}))
        charges = [self.assert_charged(classes(usages[-1]))]
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
        charges.append(self.assert_charged(classes(usages[-1])))
        self.assert_spent(*charges)

    def test_streaming_helper_gathers_the_whole_answer(self):
        with self.asker.chat.completions.stream(
            model=self.model, messages=[user("Привет")], max_tokens=500, stream_options={"include_usage": True}
        ) as stream:
            answer = stream.get_final_completion()
        self.assertEqual(answer.choices[0].message.content, "Вы написали: Привет")
        self.assert_spent(self.assert_charged(classes(answer.usage)))

    def test_cut_stream_does_not_look_whole(self):
        self.assert_cut(lambda stream: self.read(stream)[3] is not None)


if __name__ == "__main__":
    gateway.main(OpenAi)

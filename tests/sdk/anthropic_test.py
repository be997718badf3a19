"""The official `anthropic` package with a vendor of the messages format, and with one of the chat format."""

import anthropic

import gateway

WEATHER = {
    "name": "get_weather",
    "description": "Погода в городе",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def user(content):
    return {"role": "user", "content": content}


def results(calls):
    return user([{"type": "tool_result", "tool_use_id": call.id, "content": "+7 и снег"} for call in calls])


class Anthropic(gateway.Suite):
    sdk = anthropic
    model = "demo-messages"
    tokens_max = 3
    other_model = "demo-chat"
    # Parameters without a counterpart in the chat format, and below them parameters that have one.
    dropped = {
        "top_k": 40,
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": []},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "low"},
        "metadata": {"user_id": "sdk-tests"},
        "temperature": 0.5,
        "top_p": 0.9,
    }

    def client(self, secret, **options):
        self.wire = gateway.Wire(anthropic)
        return anthropic.Anthropic(
            api_key=secret, base_url=gateway.URL, http_client=self.wire.http_client, timeout=20, **options
        )

    def request(self, text="Привет", **params):
        return {"model": self.model, "messages": [user(text)], "max_tokens": 500, **params}

    def ask(self, client, text="Привет", **params):
        return client.messages.create(**self.request(text, **params))

    def classes(self, usage):
        # `input_tokens` does not include tokens read from and written to the cache.
        return {
            "input": usage.input_tokens,
            "cached_input": usage.cache_read_input_tokens or 0,
            "cache_write": usage.cache_creation_input_tokens or 0,
            "output": usage.output_tokens,
        }

    def test_plain_answer_is_charged_at_the_catalogs_prices(self):
        answer = self.ask(self.asker)
        self.assertEqual((answer.type, answer.role), ("message", "assistant"))
        self.assertTrue(answer.id)
        self.assertTrue(answer.model)
        self.assertEqual(answer._request_id, self.wire.number)
        self.assertEqual([(part.type, part.text) for part in answer.content], [("text", "Вы написали: Привет")])
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assert_spent(self.assert_charged(self.classes(answer.usage)))

    def test_streamed_answer_equals_the_plain_one_and_is_charged(self):
        text = "Расскажи, как сложить печь"
        plain = self.ask(self.asker, text)
        first = self.assert_charged(self.classes(plain.usage))
        with self.asker.messages.stream(**self.request(text)) as stream:
            texts = list(stream.text_stream)
            answer = stream.get_final_message()
        self.assertEqual("".join(texts), plain.content[0].text)
        self.assertEqual(answer.content[0].text, plain.content[0].text)
        self.assertGreater(len(texts), 1, "the answer came in one piece")
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assert_spent(first, self.assert_charged(self.classes(answer.usage)))

    def test_events_of_a_stream_arrive_in_order(self):
        events = list(self.ask(self.asker, stream=True))
        kinds = [event.type for event in events if event.type != "ping"]
        deltas = kinds.count("content_block_delta")
        self.assertGreater(deltas, 1)
        head, tail = ["message_start", "content_block_start"], ["content_block_stop", "message_delta", "message_stop"]
        self.assertEqual(kinds, [*head, *["content_block_delta"] * deltas, *tail])
        start = events[0].message
        self.assertEqual((start.content, start.stop_reason, start.stop_sequence), ([], None, None))
        end = next(event for event in events if event.type == "message_delta")
        if self.translated:
            # A chat vendor reports usage at the end: until then the input is 0, and the last event has all counts.
            self.assertEqual(start.usage.input_tokens, 0)
            self.assertGreater(end.usage.input_tokens, 0)
        else:
            self.assertGreater(start.usage.input_tokens, 0)

    def test_tool_call_and_its_result(self):
        self.tools("Погода?", 1)

    def test_parallel_tool_calls_and_their_results(self):
        self.tools("parallel: погода?", 2)

    def tools(self, text, count):
        asked = [user(text)]
        answer = self.ask(self.asker, messages=asked, tools=[WEATHER])
        calls = self.assert_calls(answer, count)
        charges = [self.assert_charged(self.classes(answer.usage))]
        turns = [*asked, {"role": "assistant", "content": answer.content}, results(calls)]
        final = self.ask(self.asker, messages=turns, tools=[WEATHER])
        self.assertIn("+7 и снег", final.content[0].text)
        charges.append(self.assert_charged(self.classes(final.usage)))
        self.assert_spent(*charges)

    def test_streamed_tool_call_and_its_result(self):
        self.streamed_tools("Погода?", 1)

    def test_streamed_parallel_tool_calls_and_their_results(self):
        self.streamed_tools("parallel: погода?", 2)

    def streamed_tools(self, text, count):
        asked = [user(text)]
        with self.asker.messages.stream(**self.request(messages=asked, tools=[WEATHER])) as stream:
            fragments = sum(event.type == "input_json" and bool(event.partial_json) for event in stream)
            answer = stream.get_final_message()
        calls = self.assert_calls(answer, count)
        self.assertGreaterEqual(fragments, 2 * count, "arguments came in one piece")
        charges = [self.assert_charged(self.classes(answer.usage))]
        # The fields of the call that a program stores, without those that the SDK adds.
        turn = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input} for call in calls]
        turns = [*asked, {"role": "assistant", "content": turn}, results(calls)]
        with self.asker.messages.stream(**self.request(messages=turns, tools=[WEATHER])) as stream:
            final = stream.get_final_message()
        self.assertIn("+7 и снег", final.content[0].text)
        charges.append(self.assert_charged(self.classes(final.usage)))
        self.assert_spent(*charges)

    def assert_calls(self, answer, count):
        self.assertEqual(answer.stop_reason, "tool_use")
        calls = [part for part in answer.content if part.type == "tool_use"]
        self.assertEqual(len({call.id for call in calls}), count)
        for call in calls:
            self.assertEqual((call.name, call.input), ("get_weather", {"city": "Москва"}))
        return calls

    def test_tool_runner_sends_the_whole_conversation(self):
        # Newer SDKs first request that the vendor store the conversation. The refusal makes them send the whole
        # conversation.
        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """Погода в городе"""
            return "в городе " + city + " +7 и снег"

        final = self.asker.beta.messages.tool_runner(**self.request("Погода?", tools=[get_weather])).until_done()
        self.assertIn("в городе Москва +7 и снег", final.content[0].text)

    def test_answer_that_reaches_max_tokens_has_that_stop_reason(self):
        text = "раз " * self.tokens_max
        # Two words of the answer come from the vendor's script.
        cut = "Вы написали: " + "раз " * (self.tokens_max - 2)
        plain = self.ask(self.asker, text, max_tokens=self.tokens_max)
        self.assertEqual((plain.content[0].text, plain.stop_reason), (cut, "max_tokens"))
        first = self.assert_charged(self.classes(plain.usage))
        answer = self.streamed(text, max_tokens=self.tokens_max)
        self.assertEqual((answer.content[0].text, answer.stop_reason), (cut, "max_tokens"))
        self.assert_spent(first, self.assert_charged(self.classes(answer.usage)))

    def test_answer_ends_before_a_stop_sequence(self):
        text, stops = "до СТОП после", ["другое", "СТОП"]
        # Chat vendors report neither which stop sequence matched nor that one did.
        end = ("end_turn", None) if self.translated else ("stop_sequence", "СТОП")
        for answer in (self.ask(self.asker, text, stop_sequences=stops), self.streamed(text, stop_sequences=stops)):
            self.assertEqual(answer.content[0].text, "Вы написали: до ")
            self.assertEqual((answer.stop_reason, answer.stop_sequence), end)

    def streamed(self, text, **params):
        with self.asker.messages.stream(**self.request(text, **params)) as stream:
            return stream.get_final_message()

    def test_instructions_reach_the_model_as_one_text_or_as_blocks(self):
        told = self.ask(self.asker, "say-system", system="Ты краток.").content[0].text
        self.assertEqual(told, "Система: Ты краток.")
        blocks = [
            {"type": "text", "text": "Ты краток.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Отвечай по-русски."},
        ]
        told = self.ask(self.asker, "say-system", system=blocks).content[0].text
        self.assertRegex(told, r"^Система: Ты краток\.\n+Отвечай по-русски\.$")

    def test_instructions_in_the_middle_of_a_conversation_reach_the_model(self):
        turns = [user("Привет"), {"role": "system", "content": "Отвечай по-русски."}, user("say-system")]
        answer = self.ask(self.asker, messages=turns)
        self.assertEqual(answer.content[0].text, "Система: Отвечай по-русски.")

    def test_image_is_sent_together_with_a_text(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        answer = self.ask(self.asker, messages=[user([image, {"type": "text", "text": "Что это?"}])])
        self.assertEqual(answer.content[0].text, "Вы написали: Что это?")

    def test_error_of_a_tool_reaches_the_model(self):
        asked = [user("Погода?")]
        answer = self.ask(self.asker, messages=asked, tools=[WEATHER])
        failed = results(self.assert_calls(answer, 1))
        failed["content"][0].update(content="нет связи", is_error=True)
        turns = [*asked, {"role": "assistant", "content": answer.content}, failed]
        final = self.ask(self.asker, messages=turns, tools=[WEATHER])
        self.assertRegex(final.content[0].text, r"^Результат: (.|\n)*нет связи")

    def test_counting_tokens_is_free(self):
        counted = self.request("Посчитай это", system="Ты краток.", tools=[WEATHER])
        del counted["max_tokens"]
        self.assertGreater(self.asker.messages.count_tokens(**counted).input_tokens, 0)
        self.assertGreater(self.asker.beta.messages.count_tokens(**counted).input_tokens, 0)
        self.assert_spent(0)

    def test_key_is_accepted_in_x_api_key_alone(self):
        # Older SDKs send only this header by default. Newer ones send `api_key` as a bearer unless configured
        # otherwise.
        headers = {"Authorization": anthropic.Omit(), "X-Api-Key": self.key.secret}
        client = self.client(self.key.secret, default_headers=headers)
        answer = self.ask(client)
        sent = self.wire.requests[-1].headers
        self.assertEqual((sent.get("authorization"), sent["x-api-key"]), (None, self.key.secret))
        self.assert_spent(self.assert_charged(self.classes(answer.usage)))

    def test_key_is_accepted_as_an_auth_token(self):
        client = self.client(None, auth_token=self.key.secret)
        answer = self.ask(client)
        self.assertEqual(self.wire.requests[-1].headers["authorization"], "Bearer " + self.key.secret)
        self.assert_spent(self.assert_charged(self.classes(answer.usage)))

    def test_cut_stream_does_not_look_complete(self):
        self.assert_cut(lambda stream: "message_stop" in [event.type for event in stream])


class AnthropicTranslated(Anthropic):
    """The same promises with a vendor of the chat format."""

    model, other_model = Anthropic.other_model, Anthropic.model
    translated = True


class AnthropicToResponses(Anthropic):
    """The same promises with a vendor of the responses format."""

    model, other_model = "demo-responses", Anthropic.model
    translated = True
    # Vendors of this format accept no lower maximum.
    tokens_max = 16

    def test_answer_ends_before_a_stop_sequence(self):
        """The responses format has no stop sequences. A refusal is better than an answer that does not stop."""
        with self.assertRaises(anthropic.BadRequestError) as refused:
            self.ask(self.asker, stop_sequences=["СТОП"])
        self.assertIn("«stop_sequences»", str(refused.exception))
        self.assert_spent()


if __name__ == "__main__":
    gateway.main(Anthropic, AnthropicTranslated, AnthropicToResponses)

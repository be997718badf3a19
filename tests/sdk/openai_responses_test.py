"""Responses in the official `openai` package, with a vendor of each format."""

import json

import openai
import pydantic

import gateway

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Погода в городе",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class City(pydantic.BaseModel):
    name: str
    people: int


def user(content):
    return {"role": "user", "content": content}


class Responses(gateway.Suite):
    sdk = openai
    model = "demo-responses"
    other_model = "demo-chat"
    # Parameters that do not change the answer.
    dropped = {
        "store": False,
        "metadata": {"department": "sales"},
        "client_metadata": {"machine": "m-1"},
        "prompt_cache_key": "sdk-tests",
        "safety_identifier": "sdk-tests",
        "temperature": 0.5,
        "top_p": 0.9,
        "truncation": "auto",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }

    def client(self, secret, **options):
        self.wire = gateway.Wire(openai)
        return openai.OpenAI(
            api_key=secret, base_url=gateway.URL + "/v1", http_client=self.wire.http_client, timeout=20, **options
        )

    def ask(self, client, text="Привет", **params):
        if "max_tokens" in params:
            params["max_output_tokens"] = params.pop("max_tokens")
        request = {"model": self.model, "input": text, "max_output_tokens": 500}
        return client.responses.create(**{**request, **params})

    def classes(self, usage):
        # `input_tokens` includes tokens read from and written to the cache.
        details = usage.input_tokens_details
        cached = getattr(details, "cached_tokens", None) or 0
        written = getattr(details, "cache_write_tokens", None) or 0
        return {
            "input": usage.input_tokens - cached - written,
            "cached_input": cached,
            "cache_write": written,
            "output": usage.output_tokens,
        }

    def test_max_tokens_of_zero_is_400_and_named(self):
        error = self.refusal(self.sdk.BadRequestError, 400, max_output_tokens=0)
        self.assertIn("«max_output_tokens»", self.message(error))
        self.assert_spent(0)

    def test_plain_answer_is_charged_at_the_catalogs_prices(self):
        answer = self.ask(self.asker)
        self.assertEqual((answer.object, answer.status), ("response", "completed"))
        self.assertEqual(answer._request_id, self.wire.number)
        self.assertEqual(answer.output_text, "Вы написали: Привет")
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
        self.assert_spent(self.assert_charged(self.classes(answer.usage)))

    def test_streaming_helper_collects_the_plain_answer(self):
        text = "Расскажи, как сложить печь"
        plain = self.ask(self.asker, text)
        first = self.assert_charged(self.classes(plain.usage))
        with self.asker.responses.stream(model=self.model, input=text, max_output_tokens=500) as stream:
            events = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual((events[0], events[-1]), ("response.created", "response.completed"))
        self.assertGreater(events.count("response.output_text.delta"), 1, "the answer came in one piece")
        self.assertEqual((final.output_text, final.status, final.usage), (plain.output_text, plain.status, plain.usage))
        self.assert_spent(first, self.assert_charged(self.classes(final.usage)))

    def test_answer_with_a_schema_is_parsed(self):
        said = City(name="Тверь", people=416_000)
        answer = self.asker.responses.parse(
            model=self.model, input="say-json " + said.model_dump_json(), text_format=City, max_output_tokens=500
        )
        self.assertEqual(answer.output_parsed, said)
        self.assertEqual(answer.output_text, said.model_dump_json())

    def test_tool_call_and_its_result(self):
        self.tools("Погода?", 1)

    def test_parallel_tool_calls_and_their_results(self):
        self.tools("parallel: погода?", 2)

    def tools(self, text, count):
        for stream in (False, True):
            turns = [user(text)]
            answer = self.answered(turns, stream)
            calls = [item for item in answer.output if item.type == "function_call"]
            self.assertEqual(len({call.call_id for call in calls}), count)
            for call in calls:
                self.assertEqual((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Москва"}))
            turns += answer.output
            turns += [{"type": "function_call_output", "call_id": call.call_id, "output": "+7 и снег"} for call in calls]
            self.assertIn("+7 и снег", self.answered(turns, stream).output_text)

    def answered(self, turns, stream):
        request = {"model": self.model, "input": turns, "tools": [WEATHER], "max_output_tokens": 500}
        if not stream:
            return self.asker.responses.create(**request)
        with self.asker.responses.stream(**request) as events:
            return events.get_final_response()

    def test_optional_search_tool_changes_nothing(self):
        answer = self.ask(self.asker, tools=[{"type": "web_search"}, WEATHER], tool_choice="auto")
        self.assertEqual([item.type for item in answer.output], ["function_call"])

    def test_reference_to_stored_state_is_400_and_named(self):
        for field, value in (("previous_response_id", "resp_1"), ("store", True), ("background", True)):
            error = self.refusal(self.sdk.BadRequestError, 400, **{field: value})
            self.assertEqual(error.code, "state_unsupported")
            self.assertIn(f"«{field}»", self.message(error))
        self.assert_spent(0)

    def test_answer_that_reaches_its_output_maximum_is_incomplete(self):
        answer = self.ask(self.asker, "раз два три четыре пять", max_output_tokens=3)
        self.assertEqual((answer.output_text, answer.status), ("Вы написали: раз ", "incomplete"))
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")

    def test_cut_stream_does_not_look_complete(self):
        self.assert_cut(lambda stream: "response.completed" in [event.type for event in stream])

    def test_error_of_a_cut_stream_has_the_request_number(self):
        with self.assertRaises(openai.APIError) as caught:
            list(self.ask(self.asker, "vendor-cut: " + "обрыв на полуслове " * 8, stream=True))
        self.assertTrue(str(caught.exception).endswith(f"({self.wire.number})"), caught.exception)


class ToChat(Responses):
    model = "demo-chat"
    other_model = "demo-messages"
    translated = True


class ToMessages(Responses):
    model = "demo-messages"
    other_model = "demo-chat"
    translated = True


if __name__ == "__main__":
    gateway.main(Responses, ToChat, ToMessages)

"""LangChain's OpenAI client in its mode for the responses format, with a vendor of each format."""

import sys
import unittest

import openai

import gateway

CUT = "vendor-cut: " + "обрыв на полуслове " * 8


def get_weather(city: str) -> str:
    """Погода в городе"""
    return f"{city}: +7 и снег"


@unittest.skipIf(sys.version_info < (3, 10), "LangChain wants Python 3.10")
class Responses(unittest.TestCase):
    model = "demo-responses"

    def setUp(self):
        from langchain_openai import ChatOpenAI

        self.key = gateway.Key()
        self.wire = gateway.Wire(openai)
        self.asker = ChatOpenAI(
            model=self.model,
            api_key=self.key.secret,
            base_url=gateway.URL + "/v1",
            use_responses_api=True,
            store=False,
            max_tokens=500,
            max_retries=0,
            http_client=self.wire.http_client,
        )

    def assert_charged(self, usage):
        """Checks that the latest call cost the catalog's price, and that the key paid nothing else."""
        details = usage["input_token_details"]
        classes = {"cached_input": details.get("cache_read", 0), "cache_write": 0, "output": usage["output_tokens"]}
        classes["input"] = usage["input_tokens"] - classes["cached_input"]
        receipt = self.key.receipt(self.wire.number)
        self.assertEqual(receipt["usage"], classes)
        self.assertEqual(self.key.spent(), gateway.cost(self.model, classes))

    def test_plain_answer_is_read_and_charged(self):
        answer = self.asker.invoke("Привет")
        self.assertEqual(answer.text, "Вы написали: Привет")
        self.assertTrue(str(self.wire.requests[-1].url).endswith("/v1/responses"))
        self.assert_charged(answer.usage_metadata)

    def test_streamed_answer_has_the_same_text_and_charge_as_a_plain_one(self):
        answer = None
        pieces = 0
        for chunk in self.asker.stream("Расскажи, как сложить печь"):
            pieces += bool(chunk.text)
            answer = chunk if answer is None else answer + chunk
        self.assertEqual(answer.text, "Вы написали: Расскажи, как сложить печь")
        self.assertGreater(pieces, 1, "the answer came in one piece")
        self.assert_charged(answer.usage_metadata)

    def test_tools_run_and_their_results_reach_the_model(self):
        from langchain_core.messages import HumanMessage, ToolMessage

        with_tools = self.asker.bind_tools([get_weather])
        for text, count in (("Погода?", 1), ("parallel: погода?", 2)):
            for streamed in (False, True):
                with self.subTest(text, streamed=streamed):
                    turns = [HumanMessage(text)]
                    answer = self.answered(with_tools, turns, streamed)
                    self.assertEqual([call["args"] for call in answer.tool_calls], [{"city": "Москва"}] * count)
                    turns.append(answer)
                    for call in answer.tool_calls:
                        turns.append(ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
                    last = self.answered(with_tools, turns, streamed)
                    self.assertEqual(last.text, "Результат: Москва: +7 и снег")

    @staticmethod
    def answered(asker, turns, streamed):
        if not streamed:
            return asker.invoke(turns)
        chunks = list(asker.stream(turns))
        return sum(chunks[1:], chunks[0])

    def test_answer_follows_its_schema(self):
        import pydantic

        class City(pydantic.BaseModel):
            name: str
            people: int

        said = City(name="Тверь", people=416_000)
        answer = self.asker.with_structured_output(City).invoke("say-json " + said.model_dump_json())
        self.assertEqual(answer, said)

    def test_refusal_is_an_error_of_the_sdk_with_the_gateways_text(self):
        for text, kind in (("vendor-400", openai.BadRequestError), ("vendor-429", openai.RateLimitError)):
            with self.assertRaises(kind) as caught:
                self.asker.invoke(text)
            self.assertIn(f"({self.wire.number})", str(caught.exception))
        self.assertEqual(self.key.spent(), 0)

    def test_cut_stream_fails_with_its_request_number(self):
        with self.assertRaises(openai.APIError) as caught:
            list(self.asker.stream(CUT))
        self.assertIn(f"({self.wire.number})", str(caught.exception))


class ToChat(Responses):
    model = "demo-chat"


class ToMessages(Responses):
    model = "demo-messages"


if __name__ == "__main__":
    gateway.main(Responses, ToChat, ToMessages)

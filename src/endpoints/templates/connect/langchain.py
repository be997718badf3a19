# pip install langchain-openai langchain-anthropic
# {{ offer.say("Модели:", "Models:") }} {{ offer.names() }}
import os

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

key = os.environ["TOLLGATE_KEY"]

# Chat completions
chat = ChatOpenAI(
    base_url={{ offer.base_url() }},
    api_key=key,
    model={{ crate::endpoints::connect::json(offer.first) }},
    max_tokens=1000,
    use_responses_api=False,
)
print(chat.invoke({{ crate::endpoints::connect::json(offer.hello) }}).content)

# Messages
messages = ChatAnthropic(
    base_url={{ offer.root_url() }},
    api_key=key,
    model={{ crate::endpoints::connect::json(offer.first) }},
    max_tokens=1000,
)
print(messages.invoke({{ crate::endpoints::connect::json(offer.hello) }}).content)

# {{ offer.say("Модели:", "Models:") }} {{ offer.names() }}

# Chat completions
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.chat_url()) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&offer.call()) }}
echo

# Messages
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.messages_url()) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'anthropic-version: 2023-06-01' \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&offer.call()) }}
echo

# Responses
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.responses_url()) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&offer.responses_call()) }}
echo
{%- if let Some(call) = offer.embeddings_call() %}

# {{ offer.say("Эмбеддинги", "Embeddings") }}
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.embeddings_url()) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&call) }}
echo
{%- endif %}

# {{ offer.say("Модели:", "Models:") }} {{ offer.names() }}

# Chat completions
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.url("chat/completions")) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&offer.call()) }}
echo

# Messages
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.url("messages")) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'anthropic-version: 2023-06-01' \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&offer.call()) }}
echo

# Responses
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.url("responses")) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&offer.responses_call()) }}
echo
{%- if let Some(call) = offer.embeddings_call() %}

# {{ offer.say("Эмбеддинги", "Embeddings") }}
curl -sS --fail-with-body {{ crate::endpoints::connect::shell(&offer.url("embeddings")) }} \
  -H "authorization: Bearer ${TOLLGATE_KEY:?}" \
  -H 'content-type: application/json' \
  -d {{ crate::endpoints::connect::shell(&call) }}
echo
{%- endif %}

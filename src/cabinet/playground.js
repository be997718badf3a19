// Sends a message to a model: shows the highest price before, the response as it streams, and the charge after.
// Texts from models and from the gateway are inserted as text, never as markup.
'use strict';

(() => {
  const [form, price, outcome, problem, response, charge, link, stop] = [
    'play', 'price', 'outcome', 'problem', 'response', 'charge', 'call', 'stop',
  ].map((id) => document.getElementById(id));
  if (!form) return;
  const { csrf, highest, over, failed } = form.dataset;
  const rubles = new Intl.NumberFormat(document.documentElement.lang, { minimumFractionDigits: 2, maximumFractionDigits: 6 });
  let estimating = new AbortController();
  let calling = null;
  let timer = 0;

  const post = (path, { signal }) => {
    const { model, message, longest } = form.elements;
    return fetch(`/cabinet/playground/${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-csrf-token': csrf },
      body: JSON.stringify({
        model: model.value,
        max_tokens: Number(longest.value),
        stream: true,
        messages: [{ role: 'user', content: message.value }],
      }),
      signal,
    });
  };
  const refusal = async (res) => (await res.json().catch(() => ({}))).error?.message ?? failed;
  const complain = (text) => {
    problem.textContent = text;
    problem.hidden = !text;
  };

  const estimate = async () => {
    estimating.abort();
    estimating = new AbortController();
    price.textContent = '';
    if (!form.checkValidity()) return;
    const { signal } = estimating;
    try {
      const res = await post('estimate', { signal });
      if (res.ok) {
        const { hold_rub: most, fits } = await res.json();
        price.textContent = (fits ? highest : over).replace('{0}', rubles.format(most));
      } else {
        price.textContent = await refusal(res);
      }
    } catch {
      // A newer estimate has replaced this one, or the connection failed. A failure is shown when the message is sent.
    }
  };

  /// Shows the text of a stream of chat completion chunks.
  const show = async (stream) => {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        const data = line.match(/^data: ?(\{.*\})\s*$/)?.[1];
        if (!data) continue;
        const { error, choices } = JSON.parse(data);
        if (error) throw new Error(error.message);
        response.append(choices?.[0]?.delta?.content ?? '');
      }
    }
  };

  /// Shows the charge of a call, or why it was not charged, from the call's page.
  const account = async (number) => {
    const res = await fetch(`/cabinet/calls/${number}`);
    if (!res.ok) return;
    const page = new DOMParser().parseFromString(await res.text(), 'text/html');
    charge.replaceChildren(...page.querySelectorAll('main > .tiles, main > section'));
    const cause = page.querySelector('main > .problem');
    if (cause) complain(cause.textContent);
    link.href = `/cabinet/calls/${number}`;
    link.hidden = false;
  };

  form.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(estimate, 300);
  });
  stop.addEventListener('click', () => calling?.abort());
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (calling) return;
    calling = new AbortController();
    complain('');
    response.replaceChildren();
    charge.replaceChildren();
    link.hidden = true;
    outcome.hidden = stop.hidden = false;
    response.setAttribute('aria-busy', 'true');
    let number = null;
    try {
      const res = await post('call', calling);
      number = res.headers.get('x-request-id');
      if (!res.ok) throw new Error(await refusal(res));
      await show(res.body);
    } catch (error) {
      if (!calling.signal.aborted) complain(error instanceof TypeError ? failed : error.message);
    }
    response.setAttribute('aria-busy', 'false');
    stop.hidden = true;
    if (number) await account(number).catch(() => {});
    calling = null;
    estimate();
  });
})();

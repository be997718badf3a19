// The script of the page at /usage. The typed key stays in the variable `key`: it is sent in one header, only to this
// origin. Names that come from others (models, sessions, clients) are inserted as text, never as markup.
'use strict';

(() => {
  const root = document.documentElement;
  const english = root.lang === 'en';
  const own = `/v1/${root.dataset.service}`;
  const say = (ru, en) => (english ? en : ru);
  const at = (id) => document.getElementById(id);
  const CSV_ROWS_MAX = 10000;
  const SENDS_MAX = 3;
  const RETRY_SECONDS_MAX = 5;
  let key = '';
  // The number of the current query. If the key or the search has changed since a query, its answer is dropped.
  let asked = 0;
  let next = null;

  // --- requests ---

  class Refused extends Error {}

  async function get(path, params = {}, withKey = true) {
    const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value));
    // URLSearchParams encodes a space as a plus, but the gateway reads a plus as a plus.
    const text = query.toString().replaceAll('+', '%20');
    const headers = withKey ? { authorization: `Bearer ${key}`, accept: 'application/json' } : { accept: 'application/json' };
    return answered(text ? `${path}?${text}` : path, { headers, cache: withKey ? 'no-store' : 'default' });
  }

  function send(path, method, change) {
    const headers = { authorization: `Bearer ${key}`, accept: 'application/json', 'content-type': 'application/json' };
    return answered(path, { method, headers, body: change ? JSON.stringify(change) : undefined });
  }

  // The page sends several requests at once and may exceed a limit per second. It then waits and sends them again.
  async function answered(address, how) {
    let answer;
    for (let sent = 1; ; sent += 1) {
      try {
        answer = await fetch(address, { credentials: 'omit', ...how });
      } catch {
        throw new Refused(say('Сервер не отвечает. Проверьте сеть и попробуйте ещё раз.', 'The server does not answer. Check the network and try again.'));
      }
      const seconds = Number(answer.headers.get('retry-after'));
      if (answer.status !== 429 || sent === SENDS_MAX || !seconds || seconds > RETRY_SECONDS_MAX) break;
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    }
    if (answer.ok) return answer;
    const said = await answer.json().catch(() => null);
    throw new Refused(said?.error?.message ?? `${answer.status}`);
  }

  const getJson = async (path, params, withKey) => (await get(path, params, withKey)).json();

  function failed(error) {
    if (!(error instanceof Refused)) console.error(error);
    at('failed').textContent = error instanceof Refused ? error.message : say('На странице произошла ошибка. Обновите её и попробуйте ещё раз.', 'The page has failed. Reload it and try again.');
    at('failed').hidden = false;
    // The previous result is above the error. It is removed first, so that the page does not change its height after
    // scrolling.
    at('said').textContent = '';
    // The form that was sent may be far below the error.
    at('failed').scrollIntoView({ block: 'nearest' });
  }

  // --- formatting ---

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
    made.append(...children);
    return made;
  }

  function drawn(name, attributes = {}, ...children) {
    const made = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
    made.append(...children);
    return made;
  }

  const point = say(',', '.');
  const thousands = say('\u202f', ',');
  const grouped = (digits) => String(digits).replace(/\B(?=(\d{3})+(?!\d))/g, thousands);

  // Formats decimal rubles digit by digit, without a float.
  function rubles(text) {
    const [whole, fraction = '00'] = text.split('.');
    return `${grouped(whole)}${point}${fraction}\u00a0₽`;
  }

  // An amount as a float, only for drawings.
  const size = (text) => Number(text) || 0;
  const tokensIn = ({ usage }) => usage.input + usage.cached_input + usage.cache_write;
  const locale = english ? 'en-GB' : 'ru-RU';
  const dayName = (day) => new Date(`${day}T00:00:00Z`).toLocaleDateString(locale, { day: 'numeric', month: 'short', timeZone: 'UTC' });
  const moment = (time) => new Date(time).toLocaleString(locale, { dateStyle: 'medium', timeStyle: 'short' });

  // `columns`: a list of [title, cell]. `cell` returns a text or a node; the first cell of a row is its header.
  function table(caption, columns, rows) {
    const [[, head], ...others] = columns;
    const body = rows.map((row) => element('tr', {},
      element('th', { scope: 'row' }, head(row)),
      ...others.map(([title, cell, kind]) => element('td', { 'data-label': title, ...(kind ? { class: kind } : {}) }, cell(row)))));
    return element('table', {},
      element('caption', {}, caption),
      element('thead', {}, element('tr', {}, ...columns.map(([title, , kind]) => element('th', { scope: 'col', ...(kind ? { class: kind } : {}) }, title)))),
      element('tbody', {}, ...body));
  }

  function share(part, whole, over = false) {
    const wide = whole > 0 ? Math.min(100, Math.max(part > 0 ? 1 : 0, (100 * part) / whole)) : 0;
    return drawn('svg', { viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      drawn('rect', { class: 'rail', width: 100, height: 6 }),
      drawn('rect', { class: over ? 'over' : 'bar', width: wide, height: 6 }));
  }

  // --- balance and ceilings ---

  function showMoney(books) {
    const tile = (name, value) => element('div', {}, element('dt', {}, name), element('dd', {}, value));
    at('money').replaceChildren(
      tile(say('Можно потратить', 'Available to spend'), rubles(books.free_rub)),
      tile(say('Списано по ключу', 'Charged to the key'), rubles(books.spent_rub)),
      tile(say('В резерве у текущих запросов', 'Held for running requests'), rubles(books.held_rub)),
      tile(say('Ключ', 'Key'), books.name ? `${books.name} (${books.prefix})` : books.prefix));
    const ceilings = [
      [say('за всё время', 'in total'), { ceiling_rub: books.ceiling_rub, spent_rub: books.spent_rub }],
      [say('за месяц', 'this month'), books.month],
      [say('за день', 'today'), books.day],
    ].filter(([, period]) => period.ceiling_rub !== null);
    at('ceilings').replaceChildren(ceilings.length === 0
      ? element('p', { class: 'note' }, say('У ключа нет своих лимитов: он ограничен балансом.', 'The key has no ceilings of its own: only the balance limits it.'))
      : table(say('Лимиты ключа', 'Ceilings of the key'), [
        [say('Период', 'Period'), ([name]) => name],
        [say('Списано', 'Charged'), ([, period]) => rubles(period.spent_rub)],
        [say('Лимит', 'Ceiling'), ([, period]) => rubles(period.ceiling_rub)],
        [say('Доля', 'Share'), ([, period]) => share(size(period.spent_rub), size(period.ceiling_rub), size(period.spent_rub) >= size(period.ceiling_rub)), 'share'],
        [say('Обновится', 'Resets'), ([, period]) => (period.resets_at ? moment(period.resets_at) : '—')],
      ], ceilings));
  }

  // --- prices ---

  const classWords = {
    cache_write_1h: ['запись в кэш на час', 'cache write, one hour'],
    cache_write_12h: ['запись в кэш на 12 часов', 'cache write, 12 hours'],
    cached_input_audio: ['звук из кэша', 'cached audio'],
    cached_input_image: ['изображения из кэша', 'cached images'],
    output_reasoning: ['рассуждения', 'reasoning'],
    request_call: ['каждый запрос', 'each request'],
    input_audio: ['звук на входе', 'audio input'],
    input_image: ['изображения на входе', 'image input'],
    output_audio: ['звук в ответе', 'audio output'],
    output_image: ['изображения в ответе', 'image output'],
    web_search_call: ['поиск в интернете, за один', 'web search, each'],
  };
  const conditionWords = {
    above_input_tokens: (most) => say(`свыше ${grouped(most)} токенов входа`, `above ${grouped(most)} input tokens`),
    service_tier: (word) => say(`уровень обслуживания ${word}`, `service tier ${word}`),
    speed: (word) => say(`скорость ${word}`, `speed ${word}`),
    inference_geo: (word) => say(`регион ${word}`, `region ${word}`),
  };
  const inWords = (condition) => Object.entries(condition ?? {})
    .map(([name, value]) => conditionWords[name]?.(value) ?? `${name} ${value}`).join(', ');
  const othersInWords = (classes) => Object.entries(classes ?? {})
    .map(([name, rate]) => `${classWords[name] ? say(...classWords[name]) : name}: ${rubles(rate)}`).join('; ');

  // Returns the prices of a model in the price list, in the form of a key's own prices.
  function listed(model) {
    const price = (of, condition, classes) => ({
      input: of.input_rub_mtok, cached_input: of.cached_input_rub_mtok, output: of.output_rub_mtok, cache_write: of.cache_write_rub_mtok, condition, classes,
    });
    const hour = model.cache_write_1h_rub_mtok ? { cache_write_1h: model.cache_write_1h_rub_mtok } : {};
    const { usual = {}, rules = [] } = model.price_rules ?? {};
    return [price(model, null, { ...hour, ...usual }), ...rules.map((rule) => price(rule, rule.condition, rule.classes))];
  }

  async function showPrices() {
    const mine = asked;
    const [{ data: models }, list] = await Promise.all([getJson('/v1/models'), getJson(`${own}/models`, {}, false)]);
    if (mine !== asked) return;
    const published = new Map(list.models.map((model) => [model.id, model]));
    const rows = models.flatMap(({ id, kind, prices }) => {
      const found = prices ?? (published.has(id) ? listed(published.get(id)) : []);
      // A model for embeddings sells only input.
      const alone = kind === 'embedding';
      return found.filter((price) => price.input).map((price) => ({ ...price, id, alone, special: Boolean(prices) }));
    });
    const rate = (name) => (row) => (row[name] && !row.alone ? rubles(row[name]) : '—');
    at('prices').replaceChildren(table(say('За миллион токенов', 'Per million tokens'), [
      [say('Модель', 'Model'), (row) => [row.id, inWords(row.condition)].filter(Boolean).join(' · ')],
      [say('Вход', 'Input'), (row) => rubles(row.input)],
      [say('Вход из кэша', 'Cached input'), rate('cached_input')],
      [say('Запись в кэш', 'Cache write'), rate('cache_write')],
      [say('Выход', 'Output'), rate('output')],
      [say('Ещё', 'Also'), (row) => othersInWords(row.classes) || '—', 'text'],
      [say('Чья цена', 'Whose price'), (row) => (row.special ? say('ваша', 'yours') : say('общая', 'everyone’s')), 'text'],
    ], rows));
    at('prices-part').hidden = rows.length === 0;
  }

  // --- payments ---

  function showPayments({ payments: waiting, debt_rub: debt }) {
    const owed = size(debt) > 0 ? [element('p', { class: 'note' }, say(`Долг по возвратам: ${rubles(debt)}.`, `Owed for refunds: ${rubles(debt)}.`))] : [];
    at('payments').replaceChildren(...owed, ...(waiting.length === 0 ? [] : [table(say('Ждут оплаты', 'Awaiting payment'), [
      [say('Когда', 'When'), (row) => moment(row.created_at)],
      [say('Сумма', 'Amount'), (row) => rubles(row.amount_rub)],
      [say('Оплатить', 'Pay'), (row) => (/^https:/.test(row.url ?? '')
        ? element('a', { href: row.url, target: '_blank', rel: 'noopener noreferrer' }, say('Перейти к оплате', 'Go to payment'))
        : '—'), 'text'],
    ], waiting)]));
  }

  async function payments() {
    if (!at('pay')) return;
    const mine = asked;
    const offer = await getJson(`${own}/payments`);
    if (mine !== asked) return;
    at('amount').placeholder = say(`от ${rubles(offer.min_rub)} до ${rubles(offer.max_rub)}`, `${rubles(offer.min_rub)} to ${rubles(offer.max_rub)}`);
    showPayments(offer);
  }

  async function pay() {
    const email = at('email').value.trim();
    const wish = { amount_rub: at('amount').value.trim().replace(',', '.'), ...(email ? { email } : {}) };
    at('failed').hidden = true;
    await send(`${own}/payments`, 'POST', wish);
    at('amount').value = '';
    await payments();
    at('said').textContent = say('Ссылка на оплату готова.', 'The payment link is ready.');
  }

  // --- the rule by which a card is charged ---

  const TERMS = ['below_rub', 'amount_rub', 'month_max_rub'];

  function showAuto(rule, mayChange) {
    const status = { waiting: ['ждёт первого платежа', 'awaits the first payment'], on: ['включено', 'on'], off: ['выключено', 'off'] };
    const card = rule?.card ? ` ${rule.card}` : '';
    const terms = rule && say(
      `${say(...status[rule.status])}: когда на балансе меньше ${rubles(rule.below_rub)}, он пополняется с карты${card} на ${rubles(rule.amount_rub)}, в месяц не больше чем на ${rubles(rule.month_max_rub)} (в этом месяце: ${rubles(rule.month_rub)}).`,
      `${say(...status[rule.status])}: when the balance is below ${rubles(rule.below_rub)}, the card${card} is charged ${rubles(rule.amount_rub)}, at most ${rubles(rule.month_max_rub)} a month (this month: ${rubles(rule.month_rub)}).`);
    const why = rule?.reason ? [` ${rule.reason}.`] : [];
    const link = /^https:/.test(rule?.url ?? '')
      ? [' ', element('a', { href: rule.url, target: '_blank', rel: 'noopener noreferrer' }, say('Перейти к первому платежу', 'Go to the first payment'))]
      : [];
    at('auto').replaceChildren(...(rule ? [terms, ...why, ...link] : [say('Не настроено.', 'Not set up.')]));
    at('auto-part').hidden = !rule && !mayChange;
    at('auto-change').hidden = !mayChange;
    at('auto-remove').hidden = !rule;
  }

  async function auto(mayChange) {
    if (!at('auto-part')) return;
    const mine = asked;
    const { auto_topup: rule } = await getJson(`${own}/payments/auto`);
    if (mine === asked) showAuto(rule, mayChange);
  }

  async function changeAuto(method, wish) {
    const mine = asked;
    at('failed').hidden = true;
    const { auto_topup: rule } = await (await send(`${own}/payments/auto`, method, wish)).json();
    if (mine !== asked) return;
    at('auto-change').reset();
    showAuto(rule, true);
    await payments();
  }

  const autoWish = () => Object.fromEntries(TERMS.map((term) => [term, at(term).value.trim().replace(',', '.')]));

  // --- an owner's keys ---

  const LIMITS = [...document.querySelectorAll('#key-change .limit')].map(({ id }) => id);
  let owned = [];
  const chosenKey = () => owned.find(({ id }) => id === at('key-chosen').value);

  function fillKey() {
    const found = chosenKey();
    at('key-name').value = found?.name ?? '';
    for (const limit of LIMITS) at(limit).value = found?.[limit] ?? '';
    at('key-switch').hidden = !found;
    at('key-delete').hidden = !found;
    at('key-switch').textContent = found?.status === 'disabled' ? say('Включить', 'Enable') : say('Отключить', 'Disable');
  }

  async function showKeys(chosen = '') {
    const mine = asked;
    const { keys } = await getJson(`${own}/keys`);
    if (mine !== asked) return;
    const words = { active: ['работает', 'active'], disabled: ['отключён', 'disabled'], deleted: ['удалён', 'deleted'] };
    at('keys').replaceChildren(table(say('Ключи и их лимиты', 'Keys and their ceilings'), [
      [say('Имя', 'Name'), (row) => row.name || '—', 'text'],
      [say('Начинается с', 'Key prefix'), (row) => element('code', {}, row.prefix), 'text'],
      [say('Состояние', 'Status'), (row) => (row.kind === 'owner' ? say('ключ владельца', 'owner key') : say(...words[row.status])), 'text'],
      [say('Сегодня', 'Today'), (row) => rubles(row.spent_day_rub)],
      [say('За всё время', 'In total'), (row) => rubles(row.spent_rub)],
      [say('Лимит за день', 'Daily ceiling'), (row) => (row.ceiling_day_rub === null ? '—' : rubles(row.ceiling_day_rub))],
    ], keys));
    owned = keys.filter(({ kind, status }) => kind === 'caller' && status !== 'deleted');
    at('key-chosen').replaceChildren(at('key-chosen').options[0], ...owned.map((row) => element('option', { value: row.id }, `${row.name || row.id} (${row.prefix})`)));
    at('key-chosen').value = chosen;
    fillKey();
    at('keys-part').hidden = false;
  }

  async function changeKey(method, change) {
    const mine = asked;
    const found = chosenKey();
    at('failed').hidden = true;
    const path = found ? `${own}/keys/${encodeURIComponent(found.id)}` : `${own}/keys`;
    const answer = await send(path, method, change);
    const made = await answer.json();
    if (mine !== asked) return;
    at('made').hidden = !made.key;
    at('made').replaceChildren(...(made.key ? [say('Новый ключ показан один раз, сохраните его: ', 'The new key is shown only once, store it: '), element('code', {}, made.key)] : []));
    await showKeys(method === 'DELETE' ? '' : made.id);
  }

  function keyWish() {
    const found = chosenKey();
    const name = at('key-name').value.trim();
    const limits = LIMITS.map((limit) => [limit, at(limit).value.trim().replace(',', '.') || null]);
    // Limits that the user did not edit are not sent, so that they keep the values that they have now.
    const changed = limits.filter(([limit, value]) => !found || value !== found[limit]);
    const named = !found || name !== found.name || changed.length === 0;
    return Object.fromEntries([...(named ? [['name', name]] : []), ...changed]);
  }

  // --- spending ---

  function daysOf(report, days) {
    const found = new Map(report.days.map((row) => [row.day, row]));
    const first = Date.parse(report.since);
    return Array.from({ length: days }, (_, index) => {
      const day = new Date(first + index * 86400000).toISOString().slice(0, 10);
      return found.get(day) ?? { day, calls: 0, charged_rub: '0.00', usage: { input: 0, cached_input: 0, cache_write: 0, output: 0 } };
    });
  }

  function plot(days, total) {
    // The drawing has the width at which it is shown, so that its letters have the size of other text.
    const around = getComputedStyle(at('main'));
    const wide = Math.max(260, at('main').clientWidth - parseFloat(around.paddingLeft) - parseFloat(around.paddingRight));
    const [high, left, below] = [200, 8, 26];
    const most = Math.max(...days.map((row) => size(row.charged_rub)));
    const step = (wide - 2 * left) / days.length;
    const bars = days.map((row, index) => {
      const tall = most > 0 ? ((high - below - 18) * size(row.charged_rub)) / most : 0;
      const bar = drawn('rect', { class: 'bar', x: left + index * step + step * 0.12, y: high - below - tall, width: step * 0.76, height: tall, rx: 2 });
      bar.append(drawn('title', {}, `${dayName(row.day)}: ${rubles(row.charged_rub)}`));
      return bar;
    });
    const every = Math.ceil(days.length / (wide < 500 ? 4 : 8));
    const ticks = days.flatMap((row, index) => (index % every === 0
      ? [drawn('text', { class: 'tick', x: left + (index + 0.5) * step, y: high - 8, 'text-anchor': index === 0 ? 'start' : 'middle', dx: index === 0 ? -step / 2 : 0 }, dayName(row.day))]
      : []));
    const top = days.find((row) => size(row.charged_rub) === most);
    const label = say(`Расход по дням, всего ${total}; больше всего ${dayName(top.day)}: ${rubles(top.charged_rub)}`,
      `Spending by day, ${total} in total; most on ${dayName(top.day)}: ${rubles(top.charged_rub)}`);
    return drawn('svg', { viewBox: `0 0 ${wide} ${high}`, role: 'img', 'aria-label': label },
      drawn('line', { class: 'axis', x1: left, x2: wide - left, y1: high - below, y2: high - below }),
      ...(most > 0 ? [drawn('text', { class: 'tick', x: left, y: 12 }, rubles(top.charged_rub))] : []),
      ...bars, ...ticks);
  }

  const sums = () => [
    [say('Запросы', 'Requests'), (row) => grouped(row.calls)],
    [say('Токены: вход', 'Tokens in'), (row) => grouped(tokensIn(row))],
    [say('выход', 'out'), (row) => grouped(row.usage.output)],
    [say('Списано', 'Charged'), (row) => rubles(row.charged_rub)],
  ];

  function showSpending(report, days) {
    const rows = daysOf(report, days);
    const total = rubles(report.total.charged_rub);
    at('spent').textContent = `${total} · ${say('запросов', 'requests')}: ${grouped(report.total.calls)}`;
    at('cut').hidden = report.sessions_complete;
    at('cut').textContent = report.sessions_complete ? '' : say(
      `У счёта очень много запросов, поэтому сессии посчитаны только с ${moment(report.sessions_since)}.`,
      `The account has very many requests, so sessions are counted only from ${moment(report.sessions_since)}.`);
    const numbers = element('details', {}, element('summary', {}, say('В цифрах', 'In numbers')),
      table(say('Расход по дням', 'Spending by day'), [[say('День', 'Day'), (row) => dayName(row.day)], ...sums()],
        rows.filter((row) => row.calls > 0).reverse()));
    at('by-day').replaceChildren(plot(rows, total), numbers);
    const whole = size(report.total.charged_rub);
    const ranked = (list, caption, title, name) => (list.length === 0
      ? element('p', { class: 'note' }, say('За это время запросов не было.', 'No requests in this period.'))
      : table(caption, [[title, name], ...sums(), [say('Доля', 'Share'), (row) => share(size(row.charged_rub), whole), 'share']], list));
    at('by-model').replaceChildren(ranked(report.models, say('Сначала самые дорогие', 'Most expensive first'), say('Модель', 'Model'), (row) => row.model));
    at('by-session').replaceChildren(ranked(report.sessions, say('Сначала самые дорогие', 'Most expensive first'), say('Сессия', 'Session'), (row) => row.session ?? say('без сессии', 'none')));
    if (report.sessions_left_out > 0) {
      at('by-session').append(element('p', { class: 'note' }, say(`И ещё сессий: ${grouped(report.sessions_left_out)}.`, `And ${grouped(report.sessions_left_out)} more sessions.`)));
    }
    const chosen = at('model').value;
    at('model').replaceChildren(at('model').options[0], ...report.models.map(({ model }) => element('option', { value: model }, model)));
    at('model').value = report.models.some(({ model }) => model === chosen) ? chosen : '';
  }

  // --- receipts ---

  const ends = {
    finished: ['завершён', 'finished'],
    client_left: ['прерван клиентом', 'client left'],
    vendor_cut: ['оборван поставщиком', 'cut by the vendor'],
    vendor_error: ['ошибка поставщика', 'vendor error'],
    gateway_stopped: ['прерван остановкой шлюза', 'gateway stopped'],
  };
  const ended = ({ end }) => (ends[end] ? say(...ends[end]) : end);

  // Returns when a day begins in the reader's time zone, because the times of receipts are shown in that zone. `until`
  // is exclusive.
  function midnight(date, daysOn = 0) {
    if (!date) return '';
    const [year, month, day] = date.split('-').map(Number);
    return new Date(year, month - 1, day + daysOn).toISOString();
  }
  const wish = () => ({ model: at('model').value, session: at('session').value.trim(), since: midnight(at('since').value), until: midnight(at('until').value, 1) });

  async function receipts(after, limit) {
    const number = at('number').value.trim();
    if (number) return { receipts: [await getJson(`${own}/receipts/${encodeURIComponent(number)}`)], next: null };
    return getJson(`${own}/receipts`, { ...wish(), after, limit });
  }

  function receiptTable(rows) {
    return table(say('Сначала новые', 'Latest first'), [
      [say('Когда', 'When'), (row) => moment(row.at)],
      [say('Модель', 'Model'), (row) => row.model, 'text'],
      [say('Сессия', 'Session'), (row) => row.session ?? '—', 'text'],
      [say('Токены: вход', 'Tokens in'), (row) => grouped(tokensIn(row))],
      [say('выход', 'out'), (row) => grouped(row.usage.output)],
      [say('Итог', 'End'), ended, 'text'],
      [say('Списано', 'Charged'), (row) => rubles(row.charged_rub)],
      [say('Номер', 'Number'), (row) => element('code', {}, row.number), 'text'],
    ], rows);
  }

  async function showReceipts(after) {
    const mine = asked;
    at('more').disabled = true;
    const page = await receipts(after, '25');
    if (mine !== asked) return;
    next = page.next;
    const made = receiptTable(page.receipts);
    const shown = at('receipts').querySelector('tbody');
    if (after && shown) shown.append(...made.querySelectorAll('tbody tr'));
    else if (page.receipts.length === 0 && !next) at('receipts').replaceChildren(element('p', { class: 'note' }, say('Ничего не нашлось. Измените условия поиска.', 'Nothing found. Change the search.')));
    else at('receipts').replaceChildren(made);
    at('more').hidden = !next;
    at('more').disabled = false;
    at('said').textContent = say(`Показано списаний: ${at('receipts').querySelectorAll('tbody tr').length}`, `Receipts shown: ${at('receipts').querySelectorAll('tbody tr').length}`);
  }

  // A text that a spreadsheet would take for a formula gets an apostrophe before it.
  function cell(value) {
    const text = String(value ?? '');
    const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  }

  async function csv() {
    const mine = asked;
    const names = ['number', 'at', 'model', 'session', 'end', 'input', 'cached_input', 'cache_write', 'output', 'charged_rub'];
    const lines = [names.join(',')];
    let after = null;
    do {
      const page = await receipts(after, '200');
      if (mine !== asked) return;
      for (const row of page.receipts) {
        const { usage } = row;
        lines.push([row.number, row.at, row.model, row.session, row.end, usage.input, usage.cached_input, usage.cache_write, usage.output, row.charged_rub].map(cell).join(','));
      }
      after = page.next;
      at('said').textContent = say(`Собрано списаний: ${lines.length - 1}`, `Receipts collected: ${lines.length - 1}`);
    } while (after && lines.length <= CSV_ROWS_MAX);
    const url = URL.createObjectURL(new Blob([`${lines.join('\r\n')}\r\n`], { type: 'text/csv' }));
    element('a', { href: url, download: 'receipts.csv' }).click();
    URL.revokeObjectURL(url);
    at('said').textContent = after
      ? say(`В файле только последние списания (${lines.length - 1}). Чтобы получить остальные, выберите другие даты.`, `The file has only the latest receipts (${lines.length - 1}). To get the rest, choose other dates.`)
      : say(`Списаний в файле: ${lines.length - 1}`, `Receipts in the file: ${lines.length - 1}`);
  }

  // --- set-up of clients ---

  async function connect() {
    const { clients } = await getJson(`${own}/connect`, {}, false);
    at('client').replaceChildren(...clients.map(({ client, title }) => element('option', { value: client }, title)));
    const show = async () => {
      const chosen = clients.find(({ client }) => client === at('client').value);
      const text = await (await get(`${own}/connect/${encodeURIComponent(chosen.client)}`, {}, false)).text();
      at('place').textContent = say(chosen.where_ru, chosen.where_en);
      at('snippet').textContent = text;
    };
    at('client').addEventListener('change', () => show().catch(failed));
    await show();
    at('connect').hidden = false;
  }

  // --- the whole page ---

  const days = () => Number(at('days').value);

  async function spending() {
    const mine = asked;
    const wanted = days();
    const report = await getJson(`${own}/usage`, { days: String(wanted) });
    if (mine === asked) showSpending(report, wanted);
  }

  async function visit() {
    asked += 1;
    const mine = asked;
    at('failed').hidden = true;
    at('said').textContent = say('Загружаем…', 'Loading…');
    const books = await getJson(`${own}/key`);
    if (mine !== asked) return;
    showMoney(books);
    await showPrices();
    await payments();
    await auto(books.kind === 'owner');
    at('keys-part').hidden = true;
    if (books.kind === 'owner') await showKeys();
    await spending();
    await showReceipts(null);
    if (mine !== asked) return;
    at('report').hidden = false;
    at('forget').hidden = false;
  }

  function forget() {
    asked += 1;
    key = '';
    next = null;
    at('key').value = '';
    at('key').required = true;
    at('search').reset();
    if (at('pay')) {
      at('pay').reset();
      at('payments').replaceChildren();
      at('auto-change').reset();
      at('auto').replaceChildren();
      at('auto-part').hidden = true;
    }
    owned = [];
    at('made').hidden = true;
    at('key-change').reset();
    at('key-chosen').replaceChildren(at('key-chosen').options[0]);
    at('keys-part').hidden = true;
    at('prices-part').hidden = true;
    for (const id of ['made', 'keys', 'money', 'ceilings', 'prices', 'by-day', 'by-model', 'by-session', 'receipts']) at(id).replaceChildren();
    at('model').replaceChildren(at('model').options[0]);
    at('report').hidden = true;
    at('forget').hidden = true;
    at('failed').hidden = true;
    at('said').textContent = say('Ключ удалён из этой вкладки.', 'The key is removed from this tab.');
    at('key').focus();
  }

  function onSubmit(form, work) {
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      work().catch(failed);
    });
  }

  onSubmit(at('ask'), async () => {
    const typed = at('key').value.trim();
    // If the field is empty, the requests are sent again with the present key.
    if (typed) key = typed;
    at('key').value = '';
    at('key').required = false;
    try {
      await visit();
    } catch (error) {
      if (at('report').hidden) at('key').required = true;
      throw error;
    }
  });
  if (at('pay')) {
    onSubmit(at('pay'), pay);
    onSubmit(at('auto-change'), () => changeAuto('PUT', autoWish()));
    at('auto-remove').addEventListener('click', () => changeAuto('DELETE').catch(failed));
  }
  onSubmit(at('search'), async () => {
    asked += 1;
    at('failed').hidden = true;
    await showReceipts(null);
  });
  onSubmit(at('key-change'), () => changeKey(chosenKey() ? 'PATCH' : 'POST', keyWish()));
  at('key-chosen').addEventListener('change', fillKey);
  at('key-switch').addEventListener('click', () => {
    const status = chosenKey()?.status === 'disabled' ? 'active' : 'disabled';
    changeKey('PATCH', { status }).catch(failed);
  });
  at('key-delete').addEventListener('click', () => {
    const { name, prefix } = chosenKey();
    const asked = say(
      `Удалить ключ «${name || prefix}» навсегда? Программы с этим ключом сразу перестанут работать, вернуть его нельзя.`,
      `Delete the key “${name || prefix}” for ever? Programs that use it stop working at once; it cannot be restored.`);
    if (confirm(asked)) changeKey('DELETE').catch(failed);
  });
  at('forget').addEventListener('click', forget);
  at('days').addEventListener('change', () => spending().catch(failed));
  at('more').addEventListener('click', () => showReceipts(next).catch((error) => {
    at('more').disabled = false;
    failed(error);
  }));
  at('csv').addEventListener('click', () => csv().catch(failed));
  at('ask').hidden = false;
  connect().catch(failed);
})();

// Shows the numbers of the node as they move. The page has those of its moment without it.
'use strict';

(() => {
  const shown = document.querySelectorAll('[data-live]');
  if (shown.length === 0 || !window.EventSource) return;
  const source = new EventSource('/console/live');
  source.addEventListener('message', ({ data }) => {
    const counters = JSON.parse(data);
    for (const place of shown) {
      const value = counters[place.dataset.live];
      if (Number.isInteger(value)) place.textContent = String(value);
    }
  });
  // Whoever has signed out, or left the page open for long, loads it again.
  source.addEventListener('end', () => source.close());
})();

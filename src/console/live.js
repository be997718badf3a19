// Updates the node's numbers on the page. Without this script the page shows the numbers at the time when it was made.
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
  // After this event nothing is updated: the operator has signed out, or the page was open for long and must be
  // reloaded.
  source.addEventListener('end', () => source.close());
})();

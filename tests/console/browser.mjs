// Chromium with Playwright, on the screen of a phone and of a desktop, light and dark, and the checks of every page.
// Screenshots are stored in target/console, next to the folder of the binary.

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { chromium } from 'playwright-core';

const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

export const SHOTS = join(dirname(process.env.TOLLGATE_BIN), '..', 'console');
export const SCREENS = { phone: { width: 390, height: 844 }, desk: { width: 1440, height: 900 } };
export const SCHEMES = ['light', 'dark'];

const FLAGS = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync',
];

export const launch = () => chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });

/// A visitor with a browser of its own; `visit.requests` has all requested addresses.
export async function visitor(browser, { screen = 'desk', scheme = 'light', ...options } = {}) {
  const context = await browser.newContext({
    viewport: SCREENS[screen],
    colorScheme: scheme,
    locale: 'ru-RU',
    timezoneId: 'UTC',
    hasTouch: screen === 'phone',
    ...options,
  });
  const page = await context.newPage();
  const requests = [];
  const complaints = [];
  page.on('request', (request) => {
    if (!/^(data|blob):/.test(request.url())) requests.push(request.url());
  });
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  return { context, page, requests, complaints, name: `${screen}-${scheme}` };
}

/// No horizontal overflow, no serious finding of axe, no message in the console; and a screenshot.
export async function sound(visit, title) {
  const { page, complaints, name } = visit;
  // An awaited element may appear before its styles, which come with each page.
  await page.waitForLoadState('load');
  const out = await page.evaluate(() => {
    const wide = document.documentElement.clientWidth;
    const found = [...document.body.querySelectorAll('*')].filter((element) => {
      const box = element.getBoundingClientRect();
      const scrolled = element.closest('pre, .scroll') && !element.matches('pre, .scroll');
      return box.width > 1 && !scrolled && box.right > wide + 0.5 && getComputedStyle(element).position !== 'absolute';
    });
    return { over: document.documentElement.scrollWidth - wide, found: found.map((element) => element.outerHTML.slice(0, 120)) };
  });
  mkdirSync(SHOTS, { recursive: true });
  await page.screenshot({ path: join(SHOTS, `${title}-${name}.png`), fullPage: true });
  assert.deepEqual(out, { over: 0, found: [] }, `${title} ${name}`);
  // Injected into the tab, because the page's policy forbids it in the page.
  await page.evaluate(readFileSync(axe, 'utf8'));
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  const serious = violations.filter(({ impact }) => ['serious', 'critical'].includes(impact));
  assert.deepEqual(
    serious.map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 160))]),
    [],
    `${title} ${name}`,
  );
  assert.deepEqual(complaints, [], `${title} ${name}`);
}

/// The browser's own message about an answer of this status, which arrives independently of the page.
export async function complained(visit, status) {
  for (let turn = 0; turn < 400 && visit.complaints.length === 0; turn += 1) await new Promise((resolve) => setTimeout(resolve, 25));
  const found = visit.complaints.splice(0);
  assert.ok(found.length === 1 && found[0].includes(String(status)), `${status}: ${JSON.stringify(found)}`);
}

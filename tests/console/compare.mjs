// Compares a picture of a page with the stored one. Two machines draw the edges of letters differently, so a picture is
// compared by overlapping tiles, in two ways: the share of pixels that differ (pixelmatch ignores those at the edges of
// letters), and the mean color, which no other drawing of letters changes by much. A bound on the whole picture would
// miss a small element on a long page.

import pixelmatch from 'pixelmatch';
import { PNG } from 'pngjs';

const TILE = 40;
const QUARTER = TILE / 2;
/// The largest share of pixels of a tile that may differ.
const SHARE_MAX = 0.15;
/// The largest difference of a tile's mean red, green or blue, of 255.
const SHADE_MAX = 8;
/// The largest difference in the size of a picture, in pixels: a line of text that wraps elsewhere is a difference.
const SIZE_MAX = 2;
const SENSITIVITY = 0.12;

/// Returns what differs, as text, or `null`; the largest differences of a tile; and a picture of the differences.
export function difference(expected, actual) {
  if (expected.equals(actual)) return { text: null, most: [0, 0], picture: actual };
  const [one, other] = [PNG.sync.read(expected), PNG.sync.read(actual)];
  if (Math.abs(one.width - other.width) > SIZE_MAX || Math.abs(one.height - other.height) > SIZE_MAX) {
    return { text: `is ${other.width} × ${other.height} pixels, not ${one.width} × ${one.height}`, picture: actual };
  }
  const [width, height] = [Math.min(one.width, other.width), Math.min(one.height, other.height)];
  const [before, after] = [one, other].map((of) => {
    const part = new PNG({ width, height });
    PNG.bitblt(of, part, 0, 0, width, height, 0, 0);
    return part.data;
  });
  const marks = new PNG({ width, height });
  pixelmatch(before, after, marks.data, width, height, { threshold: SENSITIVITY, diffMask: true });
  // Sums of each quarter of a tile: the number of marked pixels, and the differences of red, green and blue.
  const [columns, rows] = [Math.ceil(width / QUARTER), Math.ceil(height / QUARTER)];
  const sums = [0, 1, 2, 3].map(() => new Float64Array(columns * rows));
  for (let y = 0, at = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1, at += 4) {
      const quarter = Math.floor(y / QUARTER) * columns + Math.floor(x / QUARTER);
      // The mask is transparent where the pictures agree.
      if (marks.data[at + 3] > 0) sums[3][quarter] += 1;
      for (let part = 0; part < 3; part += 1) sums[part][quarter] += after[at + part] - before[at + part];
    }
  }
  const [share, shade] = [{ most: 0 }, { most: 0 }];
  const note = (worst, value, place) => {
    if (value > worst.most) Object.assign(worst, { most: value, place });
  };
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const quarters = [[0, 0], [0, 1], [1, 0], [1, 1]].map(([down, right]) => [row + down, column + right]);
      const within = quarters.filter(([y, x]) => y < rows && x < columns);
      const [red, green, blue, count] = sums.map((of) => within.reduce((sum, [y, x]) => sum + of[y * columns + x], 0) / TILE ** 2);
      const place = `${column * QUARTER}, ${row * QUARTER}`;
      note(share, count, place);
      note(shade, Math.max(...[red, green, blue].map(Math.abs)), place);
    }
  }
  const found = [];
  if (share.most > SHARE_MAX) found.push(`${(100 * share.most).toFixed(1)} % of the pixels differ in the tile at ${share.place}`);
  if (shade.most > SHADE_MAX) found.push(`the mean color differs by ${shade.most.toFixed(1)} in the tile at ${shade.place}`);
  return { text: found.join('; ') || null, most: [share.most, shade.most], picture: PNG.sync.write(marks) };
}

// How a worker is told from the others everywhere on the page: by a color, by a symbol, and in
// charts by a dash. The order is that of the ids, so it stays while the same workers take part.

import { element } from './dom.js';

const SYMBOLS = ['●', '▲', '■', '◆', '✚', '★'];
const POINT_STYLES = ['circle', 'triangle', 'rect', 'rectRot', 'cross', 'star'];
const DASHES = [[], [7, 3], [2, 3], [10, 3, 2, 3], [4, 2], [1, 2]];

const order = [];

export function learn(ids) {
  for (const id of [...ids].sort()) {
    if (!order.includes(id)) order.push(id);
  }
}

export function identity(id) {
  const index = Math.max(0, order.indexOf(id));
  const kind = index % SYMBOLS.length;
  // Beyond six workers colors come again, with other symbols.
  const shape = (index + Math.floor(index / SYMBOLS.length)) % SYMBOLS.length;
  return {
    kind,
    color: getComputedStyle(document.documentElement).getPropertyValue(`--worker-${kind}`).trim(),
    symbol: SYMBOLS[shape],
    pointStyle: POINT_STYLES[shape],
    dash: DASHES[shape],
  };
}

// The symbol in its color, to stand before the id.
export function symbol(id) {
  const { symbol: mark, kind } = identity(id);
  return element('i', { class: `symbol worker-${kind}`, 'aria-hidden': 'true' }, mark);
}

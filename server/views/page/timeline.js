// Every round as a bar on its fragment's row: sending, waiting for others, merging, and on the way
// until the last worker has applied the answer.
import { element, find, replace, setText, svg, table } from './dom.js';
import * as format from './format.js';
import { symbol } from './identity.js';

const PARTS = [
  ['send', 'sending', 'until the first delta has arrived'],
  ['wait', 'waiting', 'for the deltas of others'],
  ['merge', 'merging', 'and writing to the disk'],
  ['apply', 'applying', 'until the last worker has the answer'],
];
// The lengths that a timeline may have, and the distance of its ticks, in seconds.
const WINDOWS = new Map([
  [2, 0.5], [5, 1], [10, 2], [20, 5], [30, 5], [60, 10], [120, 30], [300, 60], [600, 120],
  [1800, 300], [3600, 600], [7200, 1200], [14400, 3600], [43200, 7200], [86400, 14400],
]);
const ROW = 26;
const LEFT = 46;

let data = null;
let training = false;
let selected = null;  // A key; null: the newest.

const key = (round) => `${round.fragment}/${round.round}`;
const times = (round, name) => round.workers.map((worker) => worker[name]).filter(format.known);

// The moments of a round, null where they have not come or are not known.
function moments(round) {
  const least = (values) => (values.length > 0 ? Math.min(...values) : null);
  const most = (values) => (values.length > 0 ? Math.max(...values) : null);
  const arrived = least(times(round, 'arrived'));
  return {
    begin: least(times(round, 'sent')) ?? arrived ?? round.closed,
    arrived,
    closed: round.closed,
    published: round.published,
    applied: most(times(round, 'applied')),
  };
}

// [[part, from, to], ...] in order; open ends reach until now.
function partsOf(round, now) {
  const at = moments(round);
  const parts = [];
  const add = (part, from, to) => {
    if (format.known(from) && to >= from) parts.push([part, from, to]);
  };
  add('send', at.begin, at.arrived ?? at.closed ?? now);
  add('wait', at.arrived, at.closed ?? now);
  add('merge', at.closed, at.published ?? now);
  add('apply', at.published, at.applied ?? at.published);
  return parts;
}

function patterns() {
  const pattern = (name, ...shapes) => svg('pattern', {
    id: `fill-${name}`, width: 6, height: 6, patternUnits: 'userSpaceOnUse', class: `${name}-color`,
  }, svg('rect', { width: 6, height: 6, fill: 'currentColor', 'fill-opacity': 0.28 }), ...shapes);
  return svg('defs', {},
    pattern('send', svg('path', { d: 'M-1 7L7 -1M-1 1L1 -1M5 7L7 5', stroke: 'currentColor', 'stroke-width': 1.6 })),
    pattern('wait', svg('path', { d: 'M0 3H6', stroke: 'currentColor', 'stroke-width': 1, 'stroke-dasharray': '2 1' })),
    pattern('merge', svg('rect', { width: 6, height: 6, fill: 'currentColor' })),
    pattern('apply', svg('path', { d: 'M1.5 0V6M4.5 0V6', stroke: 'currentColor', 'stroke-width': 1.3 })));
}

function drawLegend() {
  const keys = PARTS.map(([name, title, note]) => element('li', {},
    svg('svg', { viewBox: '0 0 26 13', 'aria-hidden': 'true' },
      svg('rect', { class: `${name}-color`, width: 26, height: 13, fill: `url(#fill-${name})`, stroke: 'currentColor' })),
    `${title} `, element('span', { class: 'soft' }, note)));
  replace('timeline-legend', ...keys);
  // Patterns are found by their ids, as long as what holds them is shown.
  find('timeline-legend').after(svg('svg', { width: 0, height: 0, class: 'patterns', 'aria-hidden': 'true' }, patterns()));
}

// The right end: now, or where it ended.
function rightEnd() {
  if (training) return data.now;
  const last = data.rounds.flatMap((round) => Object.values(moments(round)).filter(format.known));
  return last.length > 0 ? Math.min(data.now, Math.max(...last) + 0.5) : data.now;
}

// So long that a row shows a few rounds.
function fittingSeconds(width) {
  const starts = new Map();
  const gaps = [];
  for (const round of data.rounds) {
    const { begin } = moments(round);
    if (!format.known(begin)) continue;
    if (starts.has(round.fragment)) gaps.push(begin - starts.get(round.fragment));
    starts.set(round.fragment, begin);
  }
  gaps.sort((a, b) => a - b);
  const gap = gaps.length > 0 ? gaps[Math.floor(gaps.length / 2)] : 10;
  const wanted = gap * Math.max(1.2, width / 450);
  const lengths = [...WINDOWS.keys()];
  return lengths.find((seconds) => seconds >= wanted) ?? lengths.at(-1);
}

function sentence(round) {
  const at = moments(round);
  const name = `Round ${round.round} of fragment ${round.fragment}`;
  if (!format.known(at.published)) return `${name}: open`;
  const end = at.applied ?? at.published;
  return `${name}: ${format.span(end - at.begin)} from the first delta to the last apply. ${round.reason}`;
}

function drawBar(round, y, now, scale, left, right) {
  const group = svg('g', { class: `bar${key(round) === selectedKey() ? ' selected' : ''}`, 'data-key': key(round) });
  const parts = partsOf(round, now);
  if (parts.length === 0) return null;
  const begin = parts[0][1];
  const end = parts[parts.length - 1][2];
  if (end < left || begin > right) return null;
  for (const [part, from, to] of parts) {
    const x = scale(Math.max(from, left));
    // A merge takes milliseconds: it stays visible.
    const width = Math.max(part === 'merge' ? 2 : 0, scale(Math.min(to, right)) - x);
    if (width <= 0) continue;
    group.append(svg('rect', {
      class: `${part}-color`, x: x.toFixed(1), y, width: width.toFixed(1), height: ROW - 9,
      fill: `url(#fill-${part})`, stroke: 'currentColor', 'stroke-width': 0.8,
    }));
  }
  const x = scale(Math.max(begin, left));
  const width = Math.max(6, scale(Math.min(end, right)) - x);
  // A wide enough target, and the frame of the selected one.
  group.append(
    svg('rect', { class: 'hit', x: x - 4, y: y - 4, width: width + 8, height: ROW - 1 }),
    svg('rect', { class: 'frame', x: x - 2, y: y - 2, width: width + 4, height: ROW - 5, rx: 2 }),
    svg('title', {}, sentence(round)));
  return group;
}

function drawTimeline() {
  const holder = find('timeline');
  if (data.rounds.length === 0) {
    holder.replaceChildren(element('p', { class: 'empty' }, 'No round has begun yet.'));
    return;
  }
  const width = Math.max(240, holder.clientWidth);
  const chosen = Number(find('window').value);
  const seconds = chosen > 0 ? chosen : fittingSeconds(width);
  const right = rightEnd();
  const left = right - seconds;
  const fragments = [...new Set([...data.fragments.map((f) => f.fragment), ...data.rounds.map((r) => r.fragment)])]
    .sort((a, b) => a - b);
  const height = fragments.length * ROW + 24;
  const scale = (time) => LEFT + (width - LEFT - 8) * (time - left) / seconds;
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img' });
  const distance = (width < 600 ? 2 : 1) * WINDOWS.get(seconds);
  for (let ago = 0; ago <= seconds; ago += distance) {
    const x = scale(right - ago).toFixed(1);
    picture.append(
      svg('line', { class: 'grid', x1: x, x2: x, y1: 0, y2: height - 20 }),
      svg('text', { x, y: height - 6, 'text-anchor': ago === 0 ? 'end' : 'middle' },
        ago === 0 ? format.clock(right) : `−${ago % 1 === 0 ? format.duration(ago) : `${ago} s`}`));
  }
  fragments.forEach((fragment, index) => {
    const y = index * ROW + 4;
    picture.append(
      svg('text', { class: 'label', x: 0, y: y + 14 }, `frag ${fragment}`),
      svg('line', { class: 'row', x1: LEFT, x2: width, y1: y + ROW - 5, y2: y + ROW - 5 }));
    for (const round of data.rounds) {
      if (round.fragment !== fragment) continue;
      const bar = drawBar(round, y, data.now, scale, left, right);
      if (bar !== null) picture.append(bar);
    }
  });
  picture.setAttribute('aria-label',
    `${format.plural(fragments.length, 'fragment')}, the last ${format.duration(seconds)}. The table below has the times of one round.`);
  holder.replaceChildren(picture);
}

function byBegin() {
  return data.rounds.filter((round) => format.known(moments(round).begin))
    .sort((a, b) => moments(a).begin - moments(b).begin);
}

// The newest that everybody has applied who was in it, or else the newest.
function newest() {
  const rounds = byBegin();
  const done = rounds.filter((round) => round.workers.length > 0 &&
    round.workers.every((worker) => format.known(worker.applied) || !format.known(worker.arrived)));
  return (done.length > 0 ? done : rounds).at(-1) ?? null;
}

function selectedRound() {
  return data.rounds.find((round) => key(round) === selected) ?? newest();
}

function selectedKey() {
  const round = selectedRound();
  return round === null ? '' : key(round);
}

function drawRound() {
  const round = selectedRound();
  find('round').hidden = round === null;
  if (round === null) return;
  const at = moments(round);
  setText('round-title', `Round ${round.round} of fragment ${round.fragment}, sent after step ${format.short(round.send_step)}`);
  const waiting = data.fragments.find((f) => f.fragment === round.fragment && f.round === round.round);
  let reason = `Open: ${(waiting && waiting.waiting_for) || 'nobody has to be waited for yet'}.`;
  if (format.known(at.closed)) {
    reason = `Closed because ${round.reason}.`;
    if (round.missing.length > 0) reason += ` Without: ${round.missing.join(', ')}.`;
    const parts = partsOf(round, data.now).map(([part, from, to]) =>
      `${PARTS.find(([name]) => name === part)[1]} ${format.span(to - from)}`);
    reason += ` ${parts.join(', ')}. ${format.bytes(round.bytes_in)} came in, the answer has ${format.bytes(round.bytes_out)}.`;
  }
  setText('round-reason', reason);
  const after = (time) => (format.known(time) ? `+${format.span(time - at.begin)}` : '–');
  replace('round-workers', table('When the deltas of this round were sent, arrived and were applied', [
    { title: 'Worker', words: true, cell: (worker) => [symbol(worker.id), worker.id] },
    { title: 'Sent', cell: (worker) => (worker.sent === at.begin ? format.clock(worker.sent) : after(worker.sent)) },
    { title: 'Arrived', cell: (worker) => after(worker.arrived) },
    { title: 'Published', cell: () => after(at.published) },
    { title: 'Applied', cell: (worker) => after(worker.applied) },
    { title: 'Counted', words: true, cell: (worker) => {
      if (worker.quarantined) return 'no: out of line, kept apart';
      if (format.known(worker.arrived)) return 'yes';
      return format.known(at.closed) ? 'no: did not take part' : 'not yet';
    } },
  ], round.workers));
  const rounds = byBegin();
  const index = rounds.findIndex((one) => key(one) === key(round));
  find('round-earlier').disabled = index <= 0;
  find('round-later').disabled = index < 0 || index + 1 >= rounds.length;
  find('round-newest').setAttribute('aria-pressed', String(selected === null));
}

function move(by) {
  const rounds = byBegin();
  const index = rounds.findIndex((round) => key(round) === selectedKey());
  const next = rounds[index + by];
  if (next !== undefined) selected = key(next);
  redraw();
}

export function redraw() {
  if (data === null) return;
  drawTimeline();
  drawRound();
}

// answer: of api/v1/rounds.
export function drawRounds(answer, isTraining) {
  data = answer;
  training = isTraining;
  redraw();
}

export function startTimeline() {
  drawLegend();
  find('timeline').addEventListener('click', (event) => {
    const bar = event.target.closest('.bar');
    if (bar === null) return;
    selected = bar.getAttribute('data-key');
    redraw();
  });
  find('window').addEventListener('change', redraw);
  find('round-earlier').addEventListener('click', () => move(-1));
  find('round-later').addEventListener('click', () => move(1));
  find('round-newest').addEventListener('click', () => {
    selected = null;
    redraw();
  });
  addEventListener('resize', redraw);
}

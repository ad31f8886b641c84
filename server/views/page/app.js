// Asks the coordinator every few seconds and draws what it says. While nothing answers, what is
// known stays, marked as old, and the page keeps asking. A report has the last answers inside, and
// asks nobody.
import { drawCharts } from './charts.js';
import { find, setText } from './dom.js';
import * as format from './format.js';
import { learn } from './identity.js';
import * as overview from './overview.js';
import { drawRounds, redraw, startTimeline } from './timeline.js';

const POLL_MS = 2000;
const LONGEST_RETRY_MS = 10000;
const TIMEOUT_MS = 8000;
// Curves are large: they take no more of the link than a twentieth.
const SERIES_MS = 4000;
const SERIES_SHARE = 20;
const MOST_ROUNDS = 600;

const inside = find('answers') === null ? null : JSON.parse(find('answers').textContent);
let process = null;  // When the coordinator's process began.
let runId = null;
let events = [];
let lastEvent = 0;
let series = null;
let nextSeries = 0;
let failures = 0;
let lastAnswer = null;  // Of the browser's clock.
let known = null;  // What it said of the run and its workers.
let ended = false;  // When it was given, all steps were done.
let timer = null;
let polling = false;

async function get(path) {
  const response = await fetch(`api/v1/${path}`, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

async function getJson(path) {
  return inside === null ? (await get(path)).json() : inside[path.split('?')[0]];
}

function noteProcess(status) {
  const started = status.coordinator.started;
  if (status.run.id !== runId) series = null;
  if (started !== process) {
    events = [];
    lastEvent = 0;
    nextSeries = 0;
  }
  process = started;
  runId = status.run.id;
}

async function update() {
  const status = await getJson('status');
  noteProcess(status);
  const [{ workers }, rounds, news] = await Promise.all([
    getJson('workers'),
    getJson(`rounds?most=${Math.min(MOST_ROUNDS, Math.max(100, 12 * status.run.fragments))}`),
    getJson(`events?after=${lastEvent}`),
  ]);
  if (news.process !== process) throw new Error('the coordinator was started again meanwhile');
  events = events.concat(news.events).slice(-256);
  lastEvent = events.length > 0 ? events[events.length - 1].number : 0;
  ended = status.run.state === 'finished' || status.run.step >= status.run.steps;
  known = { run: status.run, workers };
  learn(workers.map((worker) => worker.id));
  overview.drawHead(status, inside);
  overview.drawCards(status, workers);
  overview.drawWorkers(workers, status.run.lease_seconds);
  overview.drawFragments(rounds.fragments, status.run);
  overview.drawEvents(events);
  overview.drawAttention(status, workers, rounds.fragments);
  drawRounds(rounds, status.run.state === 'training' && !inside?.stopped);
  const begun = performance.now();
  if (begun >= nextSeries) {
    series = await getJson('series');
    learn(series.workers.map((worker) => worker.id));
    nextSeries = begun + Math.max(SERIES_MS, SERIES_SHARE * (performance.now() - begun)) - POLL_MS / 2;
    drawCharts(series);
  }
}

function showConnection() {
  const banner = find('banner');
  const lost = failures > 0;
  document.body.classList.toggle('stale', lost && lastAnswer !== null);
  banner.hidden = !lost;
  if (inside !== null) {
    setText('connection', `A report of what was known ${inside.stopped ? 'when the coordinator stopped' : 'while the coordinator ran'}, ${format.date(inside.status.now)}.`);
    return;
  }
  if (!lost) {
    setText('connection', `Live, as of ${format.clock(lastAnswer / 1000)}.`);
    return;
  }
  const age = lastAnswer === null ? '' : ` What you see is ${format.duration((Date.now() - lastAnswer) / 1000)} old.`;
  const why = ended ? ' All steps were done, so the coordinator has probably ended.' : '';
  const outlook = known === null || ended ? '' : overview.withoutCoordinator(known.run, known.workers, (Date.now() - lastAnswer) / 1000);
  setText('banner', `Connection lost, retrying.${why}${age}${outlook}`);
  setText('connection', 'Connection lost, retrying.');
}

async function poll() {
  clearTimeout(timer);
  polling = true;
  try {
    await update();
    failures = 0;
    lastAnswer = Date.now();
  } catch (error) {
    failures += 1;
    // A mistake of the page's own is to be seen by whoever looks for it.
    if (!(error instanceof TypeError && error.message.includes('fetch')) && error.name !== 'TimeoutError') {
      console.warn(`Causeway: ${error.message}`);
    }
  }
  polling = false;
  showConnection();
  if (inside !== null) return;
  const wait = failures === 0 ? POLL_MS : Math.min(LONGEST_RETRY_MS, 1000 * failures);
  timer = setTimeout(poll, document.hidden ? Math.max(wait, LONGEST_RETRY_MS) : wait);
}

async function showConfiguration() {
  if (!find('configuration').open) return;
  try {
    setText('configuration-text', inside === null ? await (await get('config')).text() : inside.config);
  } catch {
    setText('configuration-text', 'The coordinator did not answer; close and open this again.');
  }
}

find('configuration').addEventListener('toggle', showConfiguration);
const drawAgain = () => {
  if (series !== null) drawCharts(series);
  redraw();
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAgain);
find('loss-axis').addEventListener('change', drawAgain);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && !polling && inside === null) poll();
});
find('save').hidden = inside !== null;
find('sample').hidden = !inside?.sample;
setText('sample-text', inside?.sample ?? '');
startTimeline();
poll();

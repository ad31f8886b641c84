// The head of the page, its cards, and the tables of workers, open rounds and events.
import { element, find, replace, setText, table } from './dom.js';
import * as format from './format.js';
import { symbol } from './identity.js';

const MODES = {
  'streaming': 'Streaming DiLoCo',
  'diloco': 'DiLoCo',
  'data-parallel': 'Data parallelism',
};
const RUN_STATES = {
  waiting: ['◌ waiting for workers', 'unknown'],
  training: ['▶ training', 'good'],
  paused: ['‖ paused', 'warn'],
  finished: ['■ finished', 'unknown'],
  failed: ['✕ failed', 'warn'],
};
const WORKER_STATES = {
  joining: '◌ joining', active: '● active', lost: '✕ lost', left: '○ left', unknown: '? unknown',
};
// Share of a lease; heartbeats come at a third of it.
const SILENT_AFTER = 0.7;
const MOST_EVENTS = 100;

const isLive = (worker) => worker.state === 'active' || worker.state === 'joining';

export function isSilent(worker, leaseSeconds) {
  return isLive(worker) && format.known(worker.heard_seconds_ago) &&
    worker.heard_seconds_ago > SILENT_AFTER * leaseSeconds;
}

// Says what a late answer means for a worker; null where none is late.
function lateness(worker) {
  if (!isLive(worker) || !(worker.late_answers > 0)) return null;
  const late = `${format.plural(worker.late_answers, 'answer')} late`;
  if (!format.known(worker.steps_before_wait)) return late;
  if (worker.steps_before_wait === 0) return `${late}, and it waits`;
  return `${late}; it trains on, ${format.plural(worker.steps_before_wait, 'more step')} before it waits`;
}

// Says who waits first of workers that were last seen `age` seconds ago, without a coordinator
// since.
export function withoutCoordinator(run, workers, age) {
  const waits = (worker) => worker.steps_before_wait * worker.step_seconds - (worker.heard_seconds_ago ?? 0) - age;
  const active = workers.filter((worker) => worker.state === 'active' &&
    format.known(worker.steps_before_wait) && format.known(worker.step_seconds));
  if (run.state !== 'training' || active.length === 0) return '';
  const first = active.reduce((one, other) => (waits(other) < waits(one) ? other : one));
  return waits(first) > 0
    ? ` Workers train on without the coordinator; ${first.id} is the first to wait, in about ${format.duration(waits(first))}.`
    : ` Workers wait for the coordinator by now, ${first.id} as the first.`;
}

export function drawHead(status, inside) {
  const { run } = status;
  const stopped = inside?.stopped && run.state !== 'finished' && run.state !== 'failed';
  const [text, kind] = stopped ? ['‖ stopped', 'warn'] : RUN_STATES[run.state] ?? [run.state, 'unknown'];
  setText('run-name', run.name || run.id);
  setText('run-state', text);
  find('run-state').dataset.kind = kind;
  document.title = `${run.state === 'training' ? `${Math.floor(100 * run.step / Math.max(1, run.steps))} % ` : ''}${run.name || run.id} - Causeway`;
  setText('run-facts', [
    MODES[run.mode] ?? run.mode, `${format.short(run.parameters)} parameters`,
    `${format.plural(run.fragments, 'fragment')}, each every ${format.plural(run.steps_between_syncs, 'step')}`,
    run.max_overlap_steps > run.overlap_steps
      ? `applied ${run.overlap_steps} to ${format.plural(run.max_overlap_steps, 'step')} later`
      : `applied ${format.plural(run.overlap_steps, 'step')} later`,
    `${run.codec_up} up, ${run.codec_down} down`, run.id,
  ].join(' · '));
  setText('footer', `causeway-coordinator ${status.coordinator.version}, ${inside?.stopped ? 'which ran from' : 'running since'} ${format.date(status.coordinator.started)}.${inside === null ? ' This page only reads.' : ''}`);
}

export function drawCards(status, workers) {
  const { run, bytes } = status;
  const share = run.steps > 0 ? run.step / run.steps : 0;
  setText('progress', `${run.step} of ${run.steps}`);
  find('progress-bar').value = Math.min(1, share);
  const left = format.known(run.seconds_left) ? `, about ${format.duration(run.seconds_left)} left` : '';
  setText('progress-note', run.state === 'waiting'
    ? `steps; training begins with ${format.plural(run.start_workers, 'worker')}`
    : `steps, ${Math.floor(100 * share)} %${left}`);

  const live = workers.filter(isLive);
  const counted = live.length > 0 || run.state !== 'finished' ? live : workers;
  const speed = counted.reduce((sum, worker) => sum + (worker.tokens_per_second ?? 0), 0);
  setText('tokens', format.short(run.tokens));
  const budget = run.token_budget > 0 ? ` of ${format.short(run.token_budget)}` : '';
  setText('tokens-note', `trained${budget}; ${format.short(speed)} tokens/s by ${format.plural(counted.length, 'worker')}`);

  setText('held-out', run.held_out === null ? '–' : format.loss(run.held_out.loss));
  const losses = counted.map((worker) => worker.train_loss).filter(format.known);
  const mean = losses.reduce((sum, value) => sum + value, 0) / losses.length;
  setText('held-out-note', [
    run.held_out === null ? 'not measured yet' : `nats per token, at step ${run.held_out.step}`,
    losses.length > 0 ? `training ${format.loss(mean)}` : null].filter(Boolean).join('; '));

  const shares = (live.length > 0 ? live : workers).map((worker) => worker.utilization).filter(format.known);
  const lowest = shares.length > 0 ? Math.min(...shares) : null;
  setText('computing', format.percent(
    shares.length > 0 ? shares.reduce((sum, value) => sum + value, 0) / shares.length : null));
  setText('computing-note', shares.length > 1
    ? `mean of ${format.plural(shares.length, 'worker')}; lowest ${format.percent(lowest)}`
    : 'the rest is waiting for synchronization');

  const moved = bytes.up + bytes.down;
  setText('bytes', format.known(bytes.times_fewer) && moved > 0
    ? (bytes.times_fewer >= 1 ? `${format.short(bytes.times_fewer)} times fewer` : `${format.short(1 / bytes.times_fewer)} times more`)
    : '–');
  const largest = Math.max(moved, bytes.data_parallel, 1);
  const bar = (title, value, kind) => [
    element('span', {}, title),
    element('progress', { max: 1, value: value / largest, class: kind, 'aria-label': title }),
    element('span', {}, format.bytes(value))];
  replace('bytes-bars', ...bar('moved', moved, 'ours'), ...bar('data parallel', bytes.data_parallel, 'other'));
  setText('bytes-note', `${format.bytes(bytes.up)} up and ${format.bytes(bytes.down)} down by all workers; data parallel: bf16 gradients at every step.`);
}

export function drawWorkers(workers, leaseSeconds) {
  if (workers.length === 0) {
    replace('workers', element('p', { class: 'empty' }, 'No worker has joined yet.'));
    return;
  }
  const heard = (worker) => {
    if (!format.known(worker.heard_seconds_ago)) return element('small', {}, 'not heard of since the coordinator started');
    if (isSilent(worker, leaseSeconds)) return element('small', { class: 'warn' }, `⚠ silent for ${format.duration(worker.heard_seconds_ago)}`);
    if (!isLive(worker)) return element('small', {}, `last heard ${format.duration(worker.heard_seconds_ago)} ago`);
    return element('small', {}, `heard ${format.duration(worker.heard_seconds_ago)} ago`);
  };
  const state = (worker) => element('span', { class: worker.state === 'lost' ? 'bad' : null },
    WORKER_STATES[worker.state] ?? worker.state);
  const slack = (worker) => {
    if (!isLive(worker) || !format.known(worker.steps_before_wait)) return null;
    const left = worker.steps_before_wait === 0 ? 'waits' : `${format.plural(worker.steps_before_wait, 'more step')} before it waits`;
    return worker.late_answers > 0
      ? element('small', { class: 'warn' }, `⚠ ${format.plural(worker.late_answers, 'answer')} late, ${left}`)
      : element('small', {}, left);
  };
  // May break between the two.
  const pair = (one, other) => [element('span', { class: 'part' }, `${one} /`), ' ', element('span', { class: 'part' }, other)];
  // Lists a region's sites under it. Their region is the one that hears of them.
  const rows = workers.flatMap((worker) => [worker, ...(isLive(worker) ? worker.sites : []).map(
    (site) => ({ ...site, state: worker.state, region: worker.id }))]);
  const name = (worker) => (worker.region ? [element('span', { class: 'below', 'aria-hidden': 'true' }, '└ '), worker.id] : [symbol(worker.id), worker.id]);
  const situation = (worker) => (worker.region
    ? element('small', {}, `below ${worker.region}`)
    : [state(worker), ' ', heard(worker), ' ', slack(worker)]);
  replace('workers', table('Workers of this run', [
    { title: 'Site', words: true, cell: name },
    { title: 'State', words: true, across: true, cell: situation },
    { title: 'Device', words: true, across: true, cell: (worker) => [worker.device || '–', ' ', element('small', {}, worker.version ?? '')] },
    { title: 'Step', cell: (worker) => [String(worker.step), worker.pace > 1 ? element('small', {}, ` pace ${worker.pace.toFixed(2)}`) : null] },
    { title: 'Tokens/s', cell: (worker) => format.short(worker.tokens_per_second) },
    { title: 'Loss', cell: (worker) => format.loss(worker.train_loss) },
    { title: 'Computing', cell: (worker) => format.percent(worker.utilization) },
    { title: 'Link up / down', across: true, pair: true, cell: (worker) => pair(format.rate(worker.up_bytes_per_second), format.rate(worker.down_bytes_per_second)) },
    { title: 'RTT', cell: (worker) => format.span(worker.rtt_seconds) },
    { title: 'Moved up / down', across: true, pair: true, cell: (worker) => pair(format.bytes(worker.bytes_up), format.bytes(worker.bytes_down)) },
    { title: 'Checkpoint', cell: (worker) => (format.known(worker.checkpoint_step) ? `step ${worker.checkpoint_step}` : '–') },
  ], rows, (worker) => (isLive(worker) ? null : 'old')));
}

export function drawFragments(fragments, run) {
  find('fragments').parentElement.hidden = run.state === 'finished';
  replace('fragments', table('Fragments and their open rounds', [
    { title: 'Fragment', words: true, cell: (one) => `Fragment ${one.fragment}` },
    { title: 'Values', optional: true, cell: (one) => format.short(one.values) },
    { title: 'Open round', cell: (one) => String(one.round) },
    { title: 'Sent after step', cell: (one) => String(one.send_step) },
    { title: 'Arrived from', words: true, optional: true, cell: (one) => [...one.contributed, ...one.quarantined.map((id) => `${id} (out of line)`)].join(', ') || 'nobody yet' },
    { title: 'Why it is open', words: true, across: true, cell: (one) => {
      if (one.waiting_for) return one.waiting_for;
      if (one.send_step > run.steps) return 'training ends before this round is sent';
      return 'no worker has come to its send step yet';
    } },
  ], fragments));
}

export function drawEvents(events) {
  if (events.length === 0) return;
  const grave = (event) => event.level !== 'info';
  replace('events', table('Events, the newest first', [
    { title: 'Time', words: true, cell: (event) => format.clock(Date.parse(event.time) / 1000) },
    { title: 'Event', words: true, cell: (event) => element('span', { class: grave(event) ? 'warn' : null }, grave(event) ? '⚠ ' : '', event.event) },
    { title: 'What happened', words: true, across: true, cell: (event) => event.message },
  ], events.slice(-MOST_EVENTS).reverse()));
}

export function drawAttention(status, workers, fragments) {
  const lines = [];
  if (status.coordinator.problem !== null) lines.push(`The coordinator stopped working: ${status.coordinator.problem}`);
  if (status.run.state === 'paused') lines.push('The run is paused; causewayctl resume lets it go on.');
  for (const worker of workers) {
    if (worker.state === 'lost') lines.push(`Worker ${worker.id} is lost: its lease ended without a word. Rounds go on without it.`);
    const late = lateness(worker);
    if (late !== null) lines.push(`Worker ${worker.id}: ${late}.`);
    if (isSilent(worker, status.run.lease_seconds)) lines.push(`Worker ${worker.id} has been silent for ${format.duration(worker.heard_seconds_ago)}.`);
  }
  for (const fragment of fragments) {
    if (fragment.quarantined.length > 0) lines.push(`Fragment ${fragment.fragment}: the delta of ${fragment.quarantined.join(', ')} is out of line and kept apart.`);
  }
  find('attention').hidden = lines.length === 0;
  replace('attention-list', ...lines.map((line) => element('li', {}, line)));
}

// The curves, drawn by Chart.js.
import { element, find, replace, svg } from './dom.js';
import * as format from './format.js';
import { identity, symbol } from './identity.js';

const charts = new Map();

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The last point of a line carries the worker's symbol.
function lastPoint(context) {
  return context.dataIndex === context.dataset.data.length - 1 ? 5 : 0;
}

function line(id, points, single) {
  const look = identity(id);
  return {
    label: id,
    data: points,
    borderColor: look.color,
    backgroundColor: look.color,
    borderWidth: 1.6,
    borderDash: look.dash,
    pointStyle: look.pointStyle,
    pointRadius: single ? 5 : lastPoint,
    pointBorderWidth: 2,
    pointHitRadius: 8,
    clip: 8,
  };
}

// A tick at the very end would run into the one before it.
function dropCrowdedEnd(axis) {
  const { ticks } = axis;
  const last = ticks.length - 1;
  if (last > 1 && ticks[last].value - ticks[last - 1].value < 0.9 * (ticks[1].value - ticks[0].value)) {
    axis.ticks = ticks.slice(0, last);
  }
}

// Nothing where a tick would say the same as the one before it.
function differing(formatX) {
  return (value, index, ticks) =>
    (index > 0 && formatX(ticks[index - 1].value) === formatX(value) ? '' : formatX(value));
}

function options(formatX, titleX, formatY, range, width) {
  const ink = color('--soft');
  const grid = color('--line');
  return {
    animation: false,
    maintainAspectRatio: false,
    normalized: true,
    parsing: false,
    interaction: { mode: 'nearest', intersect: false },
    scales: {
      x: {
        type: 'linear', bounds: 'data', grid: { color: grid, drawTicks: false }, afterBuildTicks: dropCrowdedEnd,
        ticks: { color: ink, maxTicksLimit: width < 500 ? 4 : 8, maxRotation: 0, padding: 6, callback: differing(formatX) },
      },
      y: {
        type: 'linear', grid: { color: grid, drawTicks: false }, ...range,
        ticks: { color: ink, maxTicksLimit: 6, padding: 6, callback: (value) => formatY(value) },
      },
    },
    plugins: {
      legend: { display: false },
      tooltip: {
        callbacks: {
          title: (items) => (items.length > 0 ? titleX(items[0].parsed.x) : ''),
          label: (item) => `${item.dataset.label}: ${formatY(item.parsed.y)}`,
        },
      },
    },
  };
}

// range: settings of the vertical axis.
function draw(id, datasets, description, { x, title = x, y, range }) {
  const canvas = find(id);
  const used = datasets.filter((dataset) => dataset.data.length > 0);
  canvas.parentElement.classList.toggle('without', used.length === 0);
  canvas.setAttribute('aria-label', used.length === 0 ? 'Nothing to show yet.' : description);
  if (typeof Chart === 'undefined') return;
  let chart = charts.get(id);
  if (chart === undefined) {
    chart = new Chart(canvas, { type: 'line', data: { datasets: [] }, options: {} });
    charts.set(id, chart);
  }
  chart.data.datasets = used;
  chart.options = options(x, title, y, range, canvas.parentElement.clientWidth);
  chart.update('none');
}

function points(series, x, y) {
  const result = [];
  for (let i = 0; i < series[x].length; ++i) {
    const value = y(series, i);
    if (format.known(value)) result.push({ x: series[x][i], y: value });
  }
  return result;
}

// A few steps, or one round, between two heartbeats make single rates jump.
const SMOOTHED = 5;

function smooth(curve) {
  return curve.map((point, i) => {
    const last = curve.slice(Math.max(0, i + 1 - SMOOTHED), i + 1);
    return { x: point.x, y: last.reduce((sum, one) => sum + one.y, 0) / last.length };
  });
}

function describe(what, datasets, formatY) {
  const parts = datasets.filter((dataset) => dataset.data.length > 0).map(
    (dataset) => `${dataset.label} ${formatY(dataset.data[dataset.data.length - 1].y)}`);
  return `${what}, latest values: ${parts.join(', ')}. The tables below have them, too.`;
}

// One for all plots: the sample of a line with its worker's symbol.
function drawLegend(ids) {
  const sample = (stroke, width, dash, mark) => [
    svg('svg', { viewBox: '0 0 26 13', 'aria-hidden': 'true' }, svg('line', {
      x1: 0, x2: 26, y1: 6.5, y2: 6.5, stroke, 'stroke-width': width, 'stroke-dasharray': dash.join(' ') || null,
    })), mark];
  const lines = ids.map((id) => {
    const look = identity(id);
    return element('li', {}, sample(look.color, 2, look.dash, symbol(id)), id);
  });
  if (ids.length > 0) {
    lines.push(element('li', {}, sample(color('--ink'), 2.6, [], '○ '), 'held-out text'));
  }
  replace('curve-legend', ...lines);
}

// When the first worker had come so far; null if none has.
function timeOf(step, workers) {
  const times = workers.map((curve) => curve.time[curve.step.findIndex((at) => at >= step)]).filter(format.known);
  return times.length > 0 ? Math.min(...times) : null;
}

// data: the answer of api/v1/series.
export function drawCharts(data) {
  const curves = (x, y, change = (curve) => curve) => data.workers.map((series) => {
    const curve = change(points(series, x, y));
    return line(series.id, curve, curve.length === 1);
  });
  const step = (value) => format.short(Math.round(value));
  drawLegend(data.workers.map((series) => series.id));

  const axis = find('loss-axis').value;
  const losses = curves(axis, (series, i) => series.train_loss[i]);
  const heldOut = data.held_out.step.map((at, i) => ({ x: axis === 'step' ? at : timeOf(at, data.workers), y: data.held_out.loss[i] }))
    .filter((point) => format.known(point.x) && format.known(point.y));
  losses.unshift({
    label: 'held-out', data: heldOut, borderColor: color('--ink'), backgroundColor: color('--card'),
    borderWidth: 2.2, pointStyle: 'circle', pointRadius: 3.5, pointBorderWidth: 2, pointHitRadius: 8, clip: 8,
  });
  const [x, title] = axis === 'step' ? [step, (value) => `step ${step(value)}`] : [format.clock, format.clock];
  draw('loss-plot', losses, describe(`Loss by ${axis}`, losses, format.loss), { x, title, y: format.digitsOf, range: {} });

  const speeds = curves('time', (series, i) => series.tokens_per_second[i], smooth);
  draw('speed-plot', speeds, describe('Tokens per second', speeds, format.short),
       { x: format.clock, y: (value) => format.short(value), range: { beginAtZero: true } });

  const shares = curves('time', (series, i) => series.utilization[i]);
  draw('utilization-plot', shares, describe('Time computing', shares, format.percent),
       { x: format.clock, y: (value) => `${format.digitsOf(100 * value)} %`, range: { suggestedMin: 0.8, max: 1 } });

  const traffic = curves('time', (series, i) => {
    const up = series.up_bytes_per_second[i];
    const down = series.down_bytes_per_second[i];
    return format.known(up) && format.known(down) ? up + down : null;
  }, smooth);
  draw('traffic-plot', traffic, describe('Bytes per second', traffic, format.rate),
       { x: format.clock, y: format.rate, range: { beginAtZero: true } });
}

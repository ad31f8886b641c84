// The curves, drawn by Chart.js.
import { find } from './dom.js';
import * as format from './format.js';
import { identity } from './identity.js';

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
    tension: 0,
  };
}

function options(formatX, formatY, fromZero) {
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
        type: 'linear', bounds: 'data', grid: { color: grid, drawTicks: false },
        ticks: { color: ink, maxTicksLimit: 7, maxRotation: 0, callback: formatX, includeBounds: false },
      },
      y: {
        type: 'linear', beginAtZero: fromZero, grid: { color: grid, drawTicks: false },
        ticks: { color: ink, maxTicksLimit: 6, callback: formatY },
      },
    },
    plugins: {
      legend: { position: 'bottom', labels: { color: color('--ink'), usePointStyle: true, boxWidth: 9, padding: 12 } },
      tooltip: {
        callbacks: {
          title: (items) => (items.length > 0 ? formatX(items[0].parsed.x) : ''),
          label: (item) => `${item.dataset.label}: ${formatY(item.parsed.y)}`,
        },
      },
    },
  };
}

function draw(id, datasets, description, formatX, formatY, fromZero) {
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
  chart.options = options(formatX, formatY, fromZero);
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

function describe(what, datasets, formatY) {
  const parts = datasets.filter((dataset) => dataset.data.length > 0).map(
    (dataset) => `${dataset.label} ${formatY(dataset.data[dataset.data.length - 1].y)}`);
  return `${what}, latest values: ${parts.join(', ')}. The tables below have them, too.`;
}

// data: the answer of api/v1/series.
export function drawCharts(data) {
  const clockTick = (value) => format.clock(value);
  const stepTick = (value) => `step ${format.short(Math.round(value))}`;
  const curves = (x, y) => data.workers.map((series) => {
    const curve = points(series, x, y);
    return line(series.id, curve, curve.length === 1);
  });

  const losses = curves('step', (series, i) => series.train_loss[i]);
  const heldOut = data.held_out.step.map((step, i) => ({ x: step, y: data.held_out.loss[i] }))
    .filter((point) => format.known(point.y));
  losses.unshift({
    label: 'held-out', data: heldOut, borderColor: color('--ink'), backgroundColor: color('--card'),
    borderWidth: 2.2, pointStyle: 'circle', pointRadius: 3.5, pointBorderWidth: 2, pointHitRadius: 8,
  });
  draw('loss-plot', losses, describe('Loss by step', losses, format.loss), stepTick,
       (value) => format.digitsOf(value), false);

  const speeds = curves('time', (series, i) => series.tokens_per_second[i]);
  draw('speed-plot', speeds, describe('Tokens per second', speeds, format.short), clockTick,
       (value) => format.short(value), true);

  const shares = curves('time', (series, i) => series.utilization[i]);
  draw('utilization-plot', shares, describe('Time computing', shares, format.percent), clockTick,
       (value) => `${format.digitsOf(100 * value)} %`, false);

  const traffic = curves('time', (series, i) => {
    const up = series.up_bytes_per_second[i];
    const down = series.down_bytes_per_second[i];
    return format.known(up) && format.known(down) ? up + down : null;
  });
  draw('traffic-plot', traffic, describe('Bytes per second', traffic, format.rate), clockTick,
       (value) => format.rate(value), true);
}

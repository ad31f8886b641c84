// Numbers and times as people read them.

const UNKNOWN = '–';

function digits(value) {
  if (value < 9.995) return value.toFixed(2);
  if (value < 99.95) return value.toFixed(1);
  return value.toFixed(0);
}

// 1234567 -> "1.23 M"; whole numbers below 1000 as they are.
export function short(value, unit = '') {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const space = unit === '' ? '' : ' ';
  if (value < 999.5) {
    const text = Number.isInteger(value) || value >= 99.95 ? value.toFixed(0) : digits(value);
    return `${text}${space}${unit}`;
  }
  const prefixes = ['k', 'M', 'G', 'T', 'P'];
  let index = -1;
  while (value >= 999.5 && index + 1 < prefixes.length) {
    value /= 1000;
    index += 1;
  }
  return `${digits(value)} ${prefixes[index]}${unit}`;
}

export const bytes = (value) => short(value, 'B');
export const rate = (value) => (known(value) ? `${short(value, 'B')}/s` : UNKNOWN);
export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
export const percent = (value) => (known(value) ? `${(100 * value).toFixed(1)} %` : UNKNOWN);
export const loss = (value) => (known(value) ? value.toFixed(3) : UNKNOWN);

// Formats a round or a round trip: three digits.
export function span(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds >= 99.5) return duration(seconds);
  if (seconds >= 0.9995) return `${digits(seconds)} s`;
  if (seconds < 5e-7) return '0 s';
  if (seconds < 0.0001) return `${Math.round(1e6 * seconds)} µs`;
  return `${digits(1000 * seconds)} ms`;
}

export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 100) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

const two = (value) => String(value).padStart(2, '0');

// The browser's time of day.
export function clock(unixSeconds) {
  if (!known(unixSeconds)) return UNKNOWN;
  const date = new Date(1000 * unixSeconds);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export const date = (unixSeconds) => new Date(1000 * unixSeconds).toLocaleString();

export function plural(count, word) {
  return `${count} ${word}${count === 1 ? '' : 's'}`;
}

// For the ticks of an axis: no more digits than it takes.
export const digitsOf = (value) => String(Number(value.toPrecision(4)));

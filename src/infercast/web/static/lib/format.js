// Numbers as people read them: three digits that count, a unit that fits, real minus signs.

const NARROW = "\u202f";

/** Three significant digits, with thousands separated: 1,234 or 0.0560. */
export function digits(value, count = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  const decimals = Math.max(0, count - 1 - size);
  const text = value.toLocaleString("en-US", {
    minimumFractionDigits: Math.min(decimals, 8),
    maximumFractionDigits: Math.min(decimals, 8),
  });
  return text.replace("-", "−");
}

/** As few digits as say it: 12, 0.5, 1,024. */
export const plain = (value) =>
  Number.isFinite(value)
    ? Number(value.toPrecision(Math.abs(value) >= 1e4 ? 7 : 4)).toLocaleString("en-US", { maximumFractionDigits: 6 })
    : "–";

const TIMES = [
  [1, "µs", 1e3],
  [1e3, "ms", 1],
  [6e4, "s", 1e-3],
  [7.2e6, "min", 1 / 6e4],
  [Infinity, "h", 1 / 3.6e6],
];

/** Milliseconds as [number, unit]. */
export function latency(milliseconds) {
  if (!Number.isFinite(milliseconds)) return ["–", ""];
  const [, unit, factor] = TIMES.find(([limit]) => milliseconds < limit);
  return [digits(milliseconds * factor), unit];
}

const SIZES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [0, ""],
];

/** A large number as short as it can be said, for axes: 2 k, 100 T. */
export function brief(value) {
  if (value === 0) return "0";
  const [factor, prefix] = SIZES.find(([limit]) => Math.abs(value) >= Math.max(limit, 1)) ?? [1, ""];
  return `${plain(value / (factor || 1))}${prefix ? NARROW : ""}${prefix}`;
}

/** A large number as [number, prefix]: 2,218 stays, 67 M. */
export function scaled(value, from = 1e5) {
  if (!Number.isFinite(value)) return ["–", ""];
  if (Math.abs(value) < from) return [digits(value, Math.abs(value) >= 1000 ? 4 : 3), ""];
  const [factor, prefix] = SIZES.find(([limit]) => Math.abs(value) >= limit);
  return [digits(value / factor), prefix];
}

export const gibibytes = (bytes) => [digits(bytes / 2 ** 30), "GiB"];
export const percent = (share) =>
  Number.isFinite(share)
    ? `${share * 100 >= 99.95 || share === 0 ? Math.round(share * 100) : digits(share * 100, share < 0.1 ? 2 : 3)}${NARROW}%`
    : "–";

export function dollars(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 100) return `$${value.toLocaleString("en-US", { maximumFractionDigits: 0 })}`;
  if (value >= 0.1) return `$${value.toFixed(2)}`;
  return `$${digits(value, 2)}`;
}

/** [number, unit] as one text. */
export const joined = ([number, unit]) => (unit ? `${number}${NARROW}${unit}` : number);
export const time = (milliseconds) => joined(latency(milliseconds));

/** A time as short as it can be said, for limits and axes: 1 s, 40 ms. */
export function briefTime(milliseconds) {
  if (!Number.isFinite(milliseconds)) return "–";
  const [, unit, factor] = TIMES.find(([limit]) => milliseconds < limit);
  return `${plain(Number((milliseconds * factor).toPrecision(3)))}${NARROW}${unit}`;
}

/** How a value compares with one before: {text, sign}; nothing where they are alike. */
export function change(before, after) {
  if (!Number.isFinite(before) || !Number.isFinite(after) || before === 0) return null;
  const ratio = after / before;
  if (Math.abs(ratio - 1) < 0.0005) return { text: "same", sign: 0 };
  if (ratio >= 3) return { text: `${digits(ratio, 2)}×`, sign: 1 };
  const text = `${ratio > 1 ? "+" : "−"}${digits(Math.abs(ratio - 1) * 100, Math.abs(ratio - 1) < 0.1 ? 2 : 3)}${NARROW}%`;
  return { text, sign: ratio > 1 ? 1 : -1 };
}

/** A model's size: 8.03 B. */
export const parameters = (count) =>
  count >= 1e12 ? `${digits(count / 1e12)} T` : count >= 1e9 ? `${digits(count / 1e9)} B` : `${digits(count / 1e6)} M`;

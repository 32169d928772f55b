// Axes: from values to pixels and back, with ticks that people can read.

/** A linear axis. */
export function linear([low, high], [from, to]) {
  const span = high - low || 1;
  const scale = (value) => from + ((value - low) / span) * (to - from);
  scale.back = (pixel) => low + ((pixel - from) / (to - from)) * span;
  scale.ticks = (count = 5) => {
    const rough = span / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= rough) ?? 10);
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step)
      found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
    return found;
  };
  scale.domain = [low, high];
  return scale;
}

/** A logarithmic axis. */
export function logarithmic([low, high], range) {
  const under = linear([Math.log10(low), Math.log10(high)], range);
  const scale = (value) => under(Math.log10(Math.max(value, low * 1e-6)));
  scale.back = (pixel) => 10 ** under.back(pixel);
  /** 1, 2, 5 of each power of ten where there is room for them, otherwise powers alone. */
  scale.ticks = (count = 6) => {
    for (const steps of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
      const found = inside(low, high, steps);
      if (found.length <= count) return found;
    }
    const powers = inside(low, high, [1]);
    const every = Math.ceil(powers.length / count);
    return powers.filter((_, index) => index % every === 0);
  };
  scale.domain = [low, high];
  return scale;
}

function inside(low, high, steps) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) {
      const value = step * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found;
}

/** Smallest and largest of many numbers, those that are no numbers left out. */
export function extent(values) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** Moves positions apart until neighbours are at least a gap from each other, within limits. */
export function apart(positions, gap, low, high) {
  const order = positions.map((value, index) => ({ value, index })).sort((one, other) => one.value - other.value);
  const placed = order.map((each) => each.value);
  for (let index = 0; index < placed.length; index += 1) {
    placed[index] = Math.max(placed[index], index ? placed[index - 1] + gap : low);
  }
  for (let index = placed.length - 1; index >= 0; index -= 1) {
    placed[index] = Math.min(placed[index], index < placed.length - 1 ? placed[index + 1] - gap : high);
  }
  const found = [];
  order.forEach((each, index) => {
    found[each.index] = placed[index];
  });
  return found;
}

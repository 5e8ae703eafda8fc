// niceTop rounds up to 1, 2, 4 or 6 times a power of ten, so that the scale stays the same while values change a
// little.
export function niceTop(max: number): number {
  if (!(max > 0)) return 1
  const power = 10 ** Math.floor(Math.log10(max))
  for (const f of [1, 2, 4, 6]) if (max <= f * power * 1.0001) return f * power
  return 10 * power
}

// alone returns the indexes of values that have no neighbors.
export const alone = (values: ArrayLike<number | null | undefined>): number[] =>
  Array.from(values, (v, i) => (v != null && values[i - 1] == null && values[i + 1] == null ? i : -1)).filter((i) => i >= 0)

// niceStep returns the smallest step of a clock's scale, in whole seconds, minutes or hours, that is at least as long
// as requested.
export const niceStep = (seconds: number) => [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600].find((s) => s >= seconds) ?? 3600 * Math.ceil(seconds / 3600)

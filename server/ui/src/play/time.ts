// The time axis: which part of it is visible, and its labels. Times are in microseconds.

export interface View {
  from: number
  span: number
  now: number
}

// viewAt shows the most recent part of the past, and a little of the future. Time 0 isn't quite at the edge, so that
// its marks are fully visible.
export function viewAt(now: number, span: number): View {
  return { from: Math.max(-0.015 * span, now - span * 0.72), span, now }
}

// steps between labels, in seconds
const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400]

// ticks returns the times to label on an axis of a given width.
export function ticks(v: View, width: number): { at: number; text: string }[] {
  const room = Math.max(2, width / 70)
  const step = steps.find((s) => v.span / 1e6 / s <= room) ?? 86400
  const out = []
  for (let i = Math.ceil(v.from / 1e6 / step); i * step * 1e6 <= v.from + v.span; i++) out.push({ at: i * step * 1e6, text: moment(i * step) })
  return out
}

// moment: 0.2 s, 12 s, 3:20, 2:00:00.
export function moment(seconds: number): string {
  if (seconds < 120) return `${+seconds.toFixed(2)} s`
  const s = Math.round(seconds)
  const two = (n: number) => String(n).padStart(2, '0')
  const m = Math.floor(s / 60) % 60
  return s < 3600 ? `${m}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(m)}:${two(s % 60)}`
}

// first returns the index of the first group of `size` numbers that begins with at least `at`.
export function first(list: ArrayLike<number>, size: number, at: number): number {
  let [low, high] = [0, list.length / size]
  while (low < high) {
    const mid = (low + high) >> 1
    if (list[mid * size]! < at) low = mid + 1
    else high = mid
  }
  return low
}

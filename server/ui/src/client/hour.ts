import type { History } from '../wire'

// complete drops a history's newest slot, which is still running and would look like a drop in traffic. end is when the
// last remaining slot began.
export function complete(past: History, at: string, slotSeconds: number): History & { end: number } {
  const running = Math.floor(Date.parse(at) / 1000 / slotSeconds) * slotSeconds
  return { requests: past.requests.slice(0, -1), refused: past.refused.slice(0, -1), end: running - slotSeconds }
}

// minutes adds up slots of 10 seconds to minutes, because single slots vary too much to be readable.
export function minutes(slots: number[] = []): number[] {
  const out: number[] = []
  for (let i = slots.length; i > 0; i -= 6) out.unshift(slots.slice(Math.max(0, i - 6), i).reduce((a, b) => a + b, 0))
  return out.length ? out : Array<number>(60).fill(0)
}

import type { History } from '../wire'

// complete is a history without its newest slot, which runs still and would look like a fall. End is when its last slot began.
export function complete(past: History, at: string, slotSeconds: number): History & { end: number } {
  const running = Math.floor(Date.parse(at) / 1000 / slotSeconds) * slotSeconds
  return { requests: past.requests.slice(0, -1), refused: past.refused.slice(0, -1), end: running - slotSeconds }
}

// minutes are six slots of ten seconds each: single slots jump too much to be read.
export function minutes(slots: number[] = []): number[] {
  const out: number[] = []
  for (let i = slots.length; i > 0; i -= 6) out.unshift(slots.slice(Math.max(0, i - 6), i).reduce((a, b) => a + b, 0))
  return out.length ? out : Array<number>(60).fill(0)
}

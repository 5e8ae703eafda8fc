import { expect, test, vi } from 'vitest'
import { heard, nodeTime } from './clock'

test("times are by the node's clock, however wrong the browser's is", () => {
  vi.useFakeTimers({ now: Date.UTC(2026, 0, 1) })
  const tell = (ms: number) => heard(new Date(Date.now() + ms).toISOString())
  const ahead = () => nodeTime() - Date.now()
  expect(ahead()).toBe(0)
  tell(3 * 3600_000)
  expect(ahead()).toBe(3 * 3600_000)
  tell(3 * 3600_000 - 1500) // a slow answer
  expect(ahead()).toBe(3 * 3600_000)
  tell(-60_000)
  expect(ahead()).toBe(-60_000)
  vi.useRealTimers()
})

import { expect, test } from 'vitest'
import { heard, nodeTime } from './clock'

const tell = (ms: number) => heard(new Date(Date.now() + ms).toISOString())
const off = () => Math.round((nodeTime() - Date.now()) / 1000)

test("times are by the node's clock, however wrong the browser's is", () => {
  expect(off()).toBe(0)
  tell(3 * 3600_000)
  expect(off()).toBe(3 * 3600)
  tell(3 * 3600_000 - 1500) // a slow answer
  expect(off()).toBe(3 * 3600)
  tell(-60_000)
  expect(off()).toBe(-60)
})

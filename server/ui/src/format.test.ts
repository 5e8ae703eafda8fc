import { expect, test } from 'vitest'
import * as f from './format'

test('short numbers keep their width', () => {
  const cases: [number, string][] = [[0, '0'], [0.44, '0.4'], [9.96, '10'], [12.4, '12'], [999.4, '999'], [999.6, '1k'], [1234, '1.2k'], [9960, '10k'], [999_600, '1M'], [35_200_000, '35M'], [2e12, '2T']]
  for (const [n, text] of cases) expect(f.short(n)).toBe(text)
})

test('a rate or a share that is not zero never reads as zero', () => {
  expect(f.rate(0)).toBe('0')
  expect(f.rate(0.01)).toBe('<0.1')
  expect(f.percent(0)).toBe('0%')
  expect(f.percent(0.0001)).toBe('<0.1%')
  expect(f.percent(0.9999)).toBe('>99.9%')
  expect(f.percent(1)).toBe('100%')
  expect(f.percent(0.831)).toBe('83%')
  expect(f.percent(0.0123)).toBe('1.2%')
})

test('durations have two units', () => {
  const cases: [number, string][] = [[-1, 'never'], [0, '0 ms'], [350, '350 ms'], [2500, '2.5 s'], [59_600, '1 min'], [200_000, '3 min 20 s'], [7_200_000, '2 h'], [7_205_000, '2 h'], [442_800_000, '5 d 3 h']]
  for (const [ms, text] of cases) expect(f.duration(ms)).toBe(text)
})

test('latencies and bytes', () => {
  expect(f.micros(8.44)).toBe('8.4 µs')
  expect(f.micros(840)).toBe('840 µs')
  expect(f.micros(1240)).toBe('1.2 ms')
  expect(f.micros(2_500_000)).toBe('2.5 s')
  expect(f.bytes(812)).toBe('812 B')
  expect(f.bytes(3_565_158)).toBe('3.4 MiB')
})

test('times before and after now', () => {
  const now = 1_700_000_000_000
  const cases: [number, string][] = [[500, 'now'], [12_000, '12 s ago'], [200_000, '3 min ago'], [-300_000, 'in 5 min'], [86_400_000 * 12, '12 d ago']]
  for (const [before, text] of cases) expect(f.ago(now - before, now)).toBe(text)
})

test('errors are sentences, and names in front of them stay as they are', () => {
  expect(f.sentence("the token isn't one of this node's")).toBe("The token isn't one of this node's.")
  expect(f.sentence('rules.yaml:14: limit: must be at least 1')).toBe('rules.yaml:14: limit: must be at least 1.')
  expect(f.sentence('Done.')).toBe('Done.')
})

import { expect, test } from 'vitest'
import { format, initial, parse } from './query'

test('what is in the address comes back from it', () => {
  const state = { numbers: { limit: 7, window: 2500, burst: 20, max_delay: 500 }, own: true, show: 'edge', pattern: 'onoff' as const, rate: '3', speed: 0.25 }
  expect(format(state)).toBe('?limit=7&window=2.5&burst=20&delay=0.5&rules=own&show=edge&pattern=onoff&rate=3&speed=0.25')
  expect(parse(format(state))).toEqual(state)
  expect(format(initial)).toBe('')
  expect(parse('')).toEqual(initial)
})

test('an address that makes no sense is as none', () => {
  expect(parse('?limit=x&window=-1&burst=Infinity&pattern=evil&rate=abc&speed=0')).toEqual(initial)
})

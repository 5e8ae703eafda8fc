import { expect, test } from 'vitest'
import { liveOverrides } from './live'
import { complete } from '../../client/hour'

test('overrides that hold now, by their ends', () => {
  const doc = {
    rules: [
      { id: 'plain' },
      {
        id: 'orders',
        override: {
          a: { limit: '300/minute', burst: 50 },
          b: { limit: '300/minute', expires: '2026-01-05T12:00:00Z' },
          c: { limit: '300/minute', expires: '2026-01-05T10:00:00Z' },
          d: '9/second',
          e: { limits: ['1/second', { limit: '5/hour' }], expires: '2026-01-05T11:00:00Z' },
        },
      },
    ],
  }
  const live = liveOverrides(doc, Date.parse('2026-01-05T10:00:00Z'))
  expect(live.map((o) => o.key)).toEqual(['e', 'b', 'a', 'd'])
  expect(live.map((o) => o.limit)).toEqual(['1/second, 5/hour', '300/minute', '300/minute', '9/second'])
  expect(live[2]).toEqual({ key: 'a', rule: 'orders', limit: '300/minute', burst: 50, expires: null })
  expect(liveOverrides({}, 0)).toEqual([])
})

test('the slot that runs still is left out of a chart', () => {
  // Slots of 10 s. The newest began at 12:00:40 and is 7 s old.
  const past = { requests: [1, 2, 3], refused: [0, 1, 2] }
  expect(complete(past, '2026-01-05T12:00:47Z', 10)).toEqual({ requests: [1, 2], refused: [0, 1], end: Date.parse('2026-01-05T12:00:30Z') / 1000 })
})

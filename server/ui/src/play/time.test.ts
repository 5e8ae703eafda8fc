import { expect, test } from 'vitest'
import { first, moment, ticks, viewAt } from './time'

test('the axis has round moments, as many as there is room for', () => {
  const v = { from: 0, span: 25e6, now: 0 }
  expect(ticks(v, 900).map((t) => t.text)).toEqual(['0 s', '2 s', '4 s', '6 s', '8 s', '10 s', '12 s', '14 s', '16 s', '18 s', '20 s', '22 s', '24 s'])
  expect(ticks(v, 300).map((t) => t.text)).toEqual(['0 s', '10 s', '20 s'])
  expect(ticks({ from: 3600e6, span: 7200e6, now: 0 }, 300).map((t) => t.text)).toEqual(['1:00:00', '1:30:00', '2:00:00', '2:30:00', '3:00:00'])
})

test('moments are read as people write them', () => {
  expect([0, 0.25, 12, 119.5, 200, 7200].map(moment)).toEqual(['0 s', '0.25 s', '12 s', '119.5 s', '3:20', '2:00:00'])
})

test('what is before the view is found quickly', () => {
  const list = [0, 9, 9, 5, 9, 9, 5, 9, 9, 8, 9, 9]
  expect([-1, 0, 1, 5, 6, 9].map((at) => first(list, 3, at))).toEqual([0, 0, 1, 1, 3, 4])
})

test('the view begins a little before 0, and follows', () => {
  expect(viewAt(1e6, 10e6).from).toBeCloseTo(-0.15e6)
  expect(viewAt(20e6, 10e6).from).toBeCloseTo(12.8e6)
})

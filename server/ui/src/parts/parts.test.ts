import { expect, test } from 'vitest'
import { alone, niceStep, niceTop } from './chart-scale'
import { sh } from './cliline'
import { hasKeys, parseDiff } from './diff-lines'
import { compare, stay, visible } from './table-rows'

test('rows that the window sees, and some on both sides', () => {
  expect(visible(10_000, 36, 200, 900)).toEqual({ from: 0, to: 40 })
  expect(visible(10_000, 36, -36_000, 900)).toEqual({ from: 980, to: 1050 })
  expect(visible(5, 36, 200, 900)).toEqual({ from: 0, to: 5 })
  expect(visible(5, 36, -36_000, 900)).toEqual({ from: 0, to: 5 })
  expect(visible(100, 36, -36_000, 900)).toEqual({ from: 100, to: 100 })
})

test('rows without a value are last in both orders, equal ones keep theirs', () => {
  const rows = [{ n: 2, id: 'a' }, { n: null, id: 'b' }, { n: 10, id: 'c' }, { n: 2, id: 'd' }]
  const ids = (desc: boolean) => compare(rows, (r) => r.n, desc).map((r) => r.id).join('')
  expect(ids(false)).toBe('adcb')
  expect(ids(true)).toBe('cadb')
  expect(compare(['r10', 'r9'], (r) => r, false)).toEqual(['r9', 'r10'])
})

test('a diff that shows keys whole', () => {
  const has = (line: string) => hasKeys(parseDiff(`@@ -1,1 +1,1 @@ sk_live_51H8aQ\n ${line}\n`))
  for (const line of ['    override: {a: 5/s}', '      sk_live_51H8aQ: 5/s', '      "sk_live_51H8aQ": {limit: 5/s}', '  - sk_live_51H8aQ', '  - "sk_live_51H8aQ"', 'blacklist: [a]']) expect(has(line), line).toBe(true)
  for (const line of ['  - id: orders-of-partner-17', '    on_store_failure: refuse', '    limit: 5/minute # a comment of some length', '    match: {endpoint: GET /v1/orders}', '']) expect(has(line), line).toBe(false)
})

test('a unified diff with the line numbers of both sides', () => {
  expect(parseDiff('--- version 1\n+++ new\n@@ -3,3 +3,2 @@\n a\n-x\n---- b\n+c\n\\ No newline at end of file\n')).toEqual([
    { kind: 'gap', text: 'line 3' },
    { kind: 'same', from: 3, to: 3, text: 'a' },
    { kind: 'del', from: 4, text: 'x' },
    { kind: 'del', from: 5, text: '--- b' },
    { kind: 'add', to: 4, text: 'c' },
  ])
  expect(parseDiff('')).toEqual([])
})

test('arguments are quoted for the shell', () => {
  expect(sh('orders-1s')).toBe('orders-1s')
  expect(sh("it's $HOME")).toBe(`'it'\\''s $HOME'`)
  expect(sh('')).toBe("''")
})

test('scales that stay still', () => {
  for (const [max, top] of [[0, 1], [NaN, 1], [0.3, 0.4], [200, 200], [201, 400], [70, 100]] as const) expect(niceTop(max)).toBeCloseTo(top)
  expect([7, 20, 61, 9000].map(niceStep)).toEqual([10, 30, 120, 10800])
})

test('values between gaps are drawn as points', () => {
  expect(alone([1, null, 2, 3, null, 4, undefined, 0])).toEqual([0, 5, 7])
  expect(alone([])).toEqual([])
})

test('rows that somebody goes through keep their places, and new ones come last', () => {
  expect(stay(['x', 'c', 'a'], (r) => r, new Map([['a', 0], ['b', 1], ['c', 2]]))).toEqual(['a', 'c', 'x'])
})

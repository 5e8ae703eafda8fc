import { expect, test } from 'vitest'
import type { Node, Now } from '../../wire'
import { differ, few, lived, modes, nodesSay, remember, rest } from './words'

const node = (name: string, more: Partial<Node> = {}): Node => ({
  name, self: false, version: 'dev', rules_version: 1, rules_hash: '', rules_text_hash: 'aa', store: 'up', seen_ms_ago: 100, ...more,
})
const list = (...nodes: Node[]) => ({ nodes, stale: false, store: { url: '', status: 'up' as const } })

test('a node that is killed stays in sight for ten minutes, or until it is back', () => {
  const self = node('a', { self: true })
  let rows = remember([], list(node('b'), self), 10_000)
  expect(rows.map((n) => n.name)).toEqual(['a', 'b'])
  rows = remember(rows, list(self, node('b', { seen_ms_ago: 8000 })), 18_000)
  rows = remember(rows, list(self), 20_000)
  rows = remember(rows, list(self), 22_000)
  expect(rows.map((n) => [n.name, n.gone, n.left])).toEqual([['a', undefined, undefined], ['b', 12_000, false]])
  expect(remember(rows, list(self, node('b')), 24_000)[1]!.gone).toBeUndefined()
  expect(remember(rows, list(self), 700_000).length).toBe(1)
})

test('a node that is stopped takes its leave', () => {
  const self = node('a', { self: true })
  const rows = remember(remember([], list(node('b', { seen_ms_ago: 1900 }), self), 10_000), list(self), 12_000)
  expect(rows[1]!.left).toBe(true)
})

test('nodes with other rules are named, gone ones are not', () => {
  const rows = remember([], list(node('a', { self: true }), node('b', { rules_text_hash: 'bb' }), node('c', { rules_text_hash: '' })), 0)
  expect(differ([...rows, { ...node('d', { rules_text_hash: 'dd' }), gone: 1 }]).map((n) => n.name)).toEqual(['b'])
})

test('rules are grouped by what they do without the store, and counted where not all are named', () => {
  const now = {
    failure_modes: [{ rule: 'a', mode: 'refuse', text: 'answers 503' }, { rule: 'c', mode: 'refuse', text: 'answers 503' }, { rule: 'b', mode: 'allow', text: 'x' }],
    failure_totals: [{ mode: 'refuse', text: 'answers 503', rules: 2 }, { mode: 'allow', text: 'x', rules: 5000 }, { mode: 'allow', text: 'shadow', rules: 3 }],
  } as Now
  expect(modes(now)).toEqual([
    { mode: 'refuse', text: 'answers 503', rules: 2, names: ['a', 'c'] },
    { mode: 'allow', text: 'x', rules: 5000, names: ['b'] },
    { mode: 'allow', text: 'shadow', rules: 3, names: [] },
  ])
})

test('all nodes are heard only if each was heard just now', () => {
  const nodes = list(node('a', { self: true }), node('b'))
  const rows = remember([], nodes, 0)
  expect(nodesSay(rows, nodes, undefined)).toEqual({ well: true, text: 'All 2 nodes are heard and have the same rules.' })
  expect(nodesSay(rows.slice(0, 1), nodes, undefined).text).toBe('This is the only node.')
  expect(nodesSay([], undefined, undefined)).toEqual({ well: true, text: '' })
  expect(nodesSay(rows, { ...nodes, stale: true, age_seconds: 90 }, undefined)).toEqual({ well: false, text: 'The other nodes were last heard 1 min 30 s ago.' })
  expect(nodesSay(rows, nodes, { message: 'no answer' })).toEqual({ well: false, text: "What the other nodes do isn't known: No answer." })
  const silent = list(node('a', { self: true }), node('b', { store: 'unknown' as Node['store'] }))
  expect(nodesSay(remember([], silent, 0), silent, undefined)).toEqual({ well: false, text: 'Not heard just now: b.' })
  expect(nodesSay([...rows, { ...node('c'), gone: 1 }], nodes, undefined).well).toBe(true)
})

test('a long list ends with what is left out', () => {
  expect(rest({ more: 0, ill: 0 }, 'node')).toBe('')
  expect(rest({ more: 1, ill: 0 }, 'node')).toBe('and 1 more node, all well')
  expect(rest({ more: 3, ill: 1 }, 'node')).toBe('and 3 more nodes, 1 of them isn’t well')
})

test('before a node began there is a gap, not a zero', () => {
  const now = { at: '2026-01-01T00:00:03Z', started: '2026-01-01T00:00:00.500Z', slot_seconds: 1 } as Now
  expect(lived(now, [0, 0, 5, 6, 7])).toEqual([null, null, 5, 6, 7])
})

test('of many, what is not well comes first', () => {
  expect(few([1, 2, 3], (n) => n !== 3, 3)).toEqual({ rows: [1, 2, 3], more: 0, ill: 0 })
  expect(few([1, 2, 3, 4], (n) => n < 3, 3)).toEqual({ rows: [3, 4, 1], more: 1, ill: 0 })
  expect(few([1, 2, 3, 4], () => false, 3)).toMatchObject({ more: 1, ill: 1 })
})

import { expect, test } from 'vitest'
import type { Decision } from '../../wire'
import { Buffer, kept } from './buffer'

const decision = (path: string) => ({ path }) as Decision

test('newest first, and what came while somebody read is counted', () => {
  const b = new Buffer()
  expect(b.show()).toBe(false)
  b.add(decision('/1'))
  b.add(decision('/2'))
  expect(b.rows).toEqual([])
  expect(b.waits).toBe(2)
  expect(b.show()).toBe(true)
  b.add(decision('/3'))
  b.show()
  expect(b.rows.map((r) => r.path)).toEqual(['/3', '/2', '/1'])
  expect(new Set(b.rows.map((r) => r.id)).size).toBe(3)
})

test('a long pause keeps the newest, and its memory is bounded', () => {
  const b = new Buffer()
  for (let i = 0; i < kept + 10; i++) b.add(decision(`/${i}`))
  expect(b.waits).toBe(kept + 10)
  b.show()
  expect(b.rows.length).toBe(kept)
  expect(b.rows[0]!.path).toBe(`/${kept + 9}`)
  expect(b.waits).toBe(0)
  b.add(decision('/new'))
  b.show()
  expect(b.rows.length).toBe(kept)
})

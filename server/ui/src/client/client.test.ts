import { expect, test } from 'vitest'
import { countdown, countOf, left, limitError, twice, wireLimit, withCount } from './limits'
import { isAddress, mask, maskEntry, readPaste, widerEntry } from './known'

test('a wait counts down from when the node told of it', () => {
  expect(left(12_000, 1000, 1000)).toBe(12_000)
  expect(left(12_000, 1000, 6000)).toBe(7000)
  expect(left(12_000, 1000, 60_000)).toBe(0)
  expect(left(12_000, 1000, 500)).toBe(12_000) // the clock was set back
  expect(left(-1, 1000, 60_000)).toBe(-1)
  expect([0, 1, 999, 1000, 1001, 61_500, 3_600_000, -1].map(countdown)).toEqual([
    'now',
    'in 1 s',
    'in 1 s',
    'in 1 s',
    'in 2 s',
    'in 1 min 2 s',
    'in 1 h',
    'never',
  ])
})

test('limits as people write them', () => {
  expect(twice('100/minute')).toBe('200/minute')
  expect(twice('5/15m')).toBe('10/15m')
  expect([twice('numbers of its own'), twice('100')]).toEqual(['numbers of its own', '100'])
  expect(withCount('50/15m', 7)).toBe('7/15m')
  expect(['50/15m', 'lots', '15m'].map(countOf)).toEqual([50, undefined, undefined])
  for (const good of ['100/minute', '5/15m', '20/second', '1000/day', '10/1h30m', '3000', '1000/30d', '600/minutes']) expect(limitError(good)).toBe('')
  for (const bad of ['', 'fast', '100/', '100 per minute', '-5/minute', '1.5/s', '100/fortnight']) expect(limitError(bad)).not.toBe('')
  expect(wireLimit(' 3000 ')).toBe(3000)
  expect(wireLimit('3000/minute')).toBe('3000/minute')
})

test('what was pasted', () => {
  expect(readPaste('  ')).toBe(null)
  expect(readPaste('{"error": {"code": "RATE_LIMIT_EXCEEDED", "details": {"rule": "orders", "limit": 100}}}')).toEqual({ rule: 'orders' })
  expect(readPaste('X-RateLimit-Rule: login')).toEqual({ rule: 'login' })
  expect(readPaste('HTTP/1.1 429 Too Many Requests\r\nx-ratelimit-rule: login\r\nRetry-After: 3')).toEqual({ rule: 'login' })
  expect(readPaste('Authorization: Bearer sk_prod_1')).toEqual({ key: 'sk_prod_1' })
  expect(readPaste('X-API-Key: sk_prod_1')).toEqual({ key: 'sk_prod_1' })
  expect(readPaste('203.0.113.7')).toEqual({ ip: '203.0.113.7' })
  expect(readPaste('2001:db8::1')).toEqual({ ip: '2001:db8::1' })
  expect(readPaste('1a2b3c4d')).toEqual({ client: '1a2b3c4d' })
  expect(readPaste('sk_prod_1\n')).toEqual({ key: 'sk_prod_1' })
  expect(readPaste('job:42')).toEqual({ key: 'job:42' })
  expect(readPaste('{not json')).toEqual({ key: '{not json' })
  expect(['300.1.1.1', 'a:b', 'job:42:x', '::', '1.2.3'].map(isAddress)).toEqual([false, false, false, false, false])
})

test('keys are masked as the nodes mask them', () => {
  expect(mask('sk_prod_acme_7f3a91c2')).toBe('sk_pr…c2')
  expect(mask('sk_prod_0123456789abcdef0123456789abcdef')).toBe('sk_prod_…cdef')
  expect(mask('abc')).toBe('…')
  expect(mask('abcdefghijkl')).toBe('ab…')
  expect(maskEntry('sk_revoked_*')).toBe('sk_revoked_*')
  expect(maskEntry('203.0.113.0/24')).toBe('203.0.113.0/24')
  expect(maskEntry('2001:db8::/32')).toBe('2001:db8::/32')
  expect(maskEntry('sk_prod_acme_7f3a91c2')).toBe('sk_pr…c2')
  expect(['sk_revoked_*', '203.0.113.0/24', 'sk_prod_1', '203.0.113.7'].map((e) => widerEntry(e) !== '')).toEqual([true, true, false, false])
})

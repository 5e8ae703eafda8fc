import { expect, test } from 'vitest'
import type { Counter, Explanation } from '../../wire'
import { asked, checkOf, nothing, queryOf, readQuestion } from './question'
import { leftOf, limitsOf } from '../../client/limits'
import { verdict } from './verdict'

const counter = (policy: string, o: Partial<Counter> = {}): Counter => ({
  rule: policy.replace(/-\d+[smhd]$/, ''),
  policy,
  algorithm: 'token_bucket',
  shadow: false,
  refuses: false,
  shared_address: false,
  used: 0,
  limit: '100/minute',
  max: 100,
  remaining: 100,
  reset_after_ms: 0,
  retry_after_ms: 0,
  full_at: null,
  degraded: false,
  ...o,
})
const explained = (o: Partial<Explanation> = {}): Explanation => ({ reason: 'within', rules: [], ...o })

test('an address and its question', () => {
  const q = readQuestion(new URLSearchParams('rule=orders&client=1a2b3c4d&as=sk_pr…c2&method=get&path=/v1/orders/17&cost=3&unverified=true'))
  expect(q).toEqual({ ...nothing, rule: 'orders', client: '1a2b3c4d', as: 'sk_pr…c2', method: 'GET', path: '/v1/orders/17', cost: '3', unverified: true })
  const { unverified, ...rest } = queryOf(q)
  expect(readQuestion(new URLSearchParams({ ...(rest as Record<string, string>), unverified: unverified! }))).toEqual(q)
  expect(asked(q)).toBe('request')
  expect(asked({ ...nothing, rule: 'orders' })).toBe('rule')
  expect(asked(nothing)).toBe('nothing')
})

test('what is no fingerprint, and what may be secret, stays out of addresses', () => {
  expect(readQuestion(new URLSearchParams('client=sk_prod_secret&cost=many'))).toEqual(nothing)
  expect(queryOf({ ...nothing, path: '/reset?token=secret#x', as: 'sk' })).toMatchObject({ path: '/reset', as: '' })
  expect(Object.keys(queryOf(nothing))).not.toContain('user')
})

test('a question as the API takes it', () => {
  const q = { ...nothing, method: 'GET', path: '/a', org: 'acme', cost: '2' }
  expect(checkOf(q, { key: 'k' }, { user: '42', attributes: 'region=eu\nbad\nheader:X-A = b=c ' })).toEqual({
    key: 'k',
    method: 'GET',
    path: '/a',
    cost: 2,
    attributes: { region: 'eu', 'header:X-A': 'b=c', user: '42', org: 'acme' },
  })
  expect(checkOf(nothing, { client: '1a2b3c4d' }, { user: '', attributes: '' })).toEqual({ client: '1a2b3c4d' })
  expect(checkOf(nothing, { ip: '::1' }, { user: '', attributes: '' })).toEqual({ ip: '::1' })
  expect(checkOf(nothing, { user: 'ada' }, { user: '', attributes: '' })).toEqual({ attributes: { user: 'ada' } })
})

test('an address shows a mask, and no other text', () => {
  for (const as of ['sk_pr…c2', '…', '203.0.113.7', '2001:db8::/64']) expect(readQuestion(new URLSearchParams({ as })).as).toBe(as)
  for (const as of ['Your account is blocked: call 555…1', 'sk_prod_acme_7f3a91c2', 'sk_prod_acme_7f3a91c2…']) expect(readQuestion(new URLSearchParams({ as })).as).toBe('')
})

test('limits begin with the one that binds, and candidates are none', () => {
  const limit = (policy: string, limit: string, shadow?: boolean) => ({ policy, algorithm: 'token_bucket', limit, ...(shadow ? { shadow } : {}) })
  const x = explained({
    tier: 'pro',
    rules: [
      { rule: 'gone', applies: false, why: '' },
      { rule: 'address', applies: true, why: '', source: 'rule', limits: [limit('address-1s', '20/second'), limit('address-1h', '5000/hour'), limit('address-candidate', '9/second', true)] },
      { rule: 'quota', applies: true, why: '', source: 'tier', limits: [limit('quota', '100/minute')] },
      { rule: 'trial', applies: true, why: '', source: 'rule_tier', limits: [limit('trial', '7/minute', true)] },
    ],
  })
  const all = limitsOf(x, [counter('address-1h'), counter('quota'), counter('address-1s')])
  expect(all.map((l) => [l.policy, l.at, l.of, l.source])).toEqual([
    ['address-1h', 1, 2, 'rule'],
    ['quota', 0, 1, 'tier'],
    ['address-1s', 0, 2, 'rule'],
    ['trial', 0, 1, 'rule_tier'],
  ])
  expect(all[1]!.tier).toBe('pro')
})

test('the verdict is by the counter that the node puts first', () => {
  const of = (reason: string, ...counters: Counter[]) => verdict({ reason, counters })
  expect(of('denied')).toMatchObject({ word: 'Blocked', tone: 'bad' })
  expect(of('bypassed')).toMatchObject({ word: 'Allowed', kind: 'bypassed' })
  expect(of('identity_required')).toMatchObject({ word: 'Refused', kind: 'identity_required' })
  expect(of('cooldown', counter('a', { refuses: true, remaining: 0, retry_after_ms: 60_000 }))).toMatchObject({ word: 'Refused', kind: 'cooldown', binding: { rule: 'a', retry_after_ms: 60_000 } })
  expect(of('unlimited')).toMatchObject({ word: 'Allowed', kind: 'none' })
  expect(of('limited', counter('b', { refuses: true }), counter('a', { used: 0.6 }))).toMatchObject({ word: 'Refused', binding: { policy: 'b' } })
  expect(of('within', counter('a', { used: 0.6 }), counter('b'))).toMatchObject({ word: 'Allowed', tone: 'ok', binding: { policy: 'a' } })
  expect(of('within', counter('a', { used: 0.9 }))).toMatchObject({ word: 'Allowed', tone: 'warn' })
  expect(of('within', counter('a', { degraded: true, used: null }), counter('b'))).toMatchObject({ word: 'Unknown', binding: { policy: 'a' } })
  // The shared counter of all clients without a known address says nothing about one client, and a counter that only
  // counts refuses no request.
  expect(of('limited', counter('a', { shared_address: true, refuses: true }))).toMatchObject({ word: 'Unknown', kind: 'address' })
  expect(of('within', counter('a', { shadow: true, refuses: true }))).toMatchObject({ word: 'Allowed', kind: 'none' })
})

test('how a counter stands: amounts are decimal, and requests in flight end when they end', () => {
  const said = (o: Partial<Counter>) => Object.values(leftOf(counter('a', o))).join(' ')
  expect(said({ remaining: 1234, max: 5000 })).toBe('1,234 of 5,000 left')
  expect(said({ remaining: 12.05, max: 50, amount: 'usd' })).toBe('12.05 of 50 usd left')
  expect(said({ remaining: 0.000001, max: 0.5, amount: 'usd' })).toBe('0.000001 of 0.5 usd left')
  expect(said({ remaining: 17, max: 20, in_flight: 3 })).toBe('3 of 20 in flight')
})

import { expect, test } from 'vitest'
import { candidateOf, change, enforceCandidate, fieldAt, isForm, readForm, withLimit, type FieldName } from './form-model'

const form = (text: string) => {
  const f = readForm(text)
  if (!isForm(f)) throw new Error(f.text)
  return f
}

const text = `id: search
match: {endpoint: "/v1/search"}   # the slow one
by: [user, ip]
limits: [20/second, 5000/hour]
algorithm: leaky_bucket
mode: queue
max_delay: 10s
count: {status: [4xx, 500]}
strict: true
tiers: {pro: 300/minute}
override: {sk_1: 3000/minute, sk_2: {limit: 1/s}}
`

test('the form shows what the text says', () => {
  const f = form(text)
  expect(f.held).toEqual({})
  expect(f.values).toMatchObject({
    id: 'search',
    endpoint: '/v1/search',
    by: 'user, ip',
    limit: '20/second, 5000/hour',
    algorithm: 'queue',
    max_delay: '10s',
    status: '4xx, 500',
    strict: 'true',
    shadow: '',
    cost: '',
  })
  expect(f.tiers).toEqual(['pro'])
  expect(f.overrides).toBe(2)
})

test('what the form cannot show stays in the YAML', () => {
  expect(form('params: {capacity: 100, refill_rate: 1.67}').held).toHaveProperty('limit')
  expect(form('limits: [{limit: 1/s, burst: 5}, 5/m]').held).toHaveProperty('limit')
  expect(form('limit: {a: b}').held).toHaveProperty('limit')
  expect(form('candidate: {limit: 50/minute, burst: 9}').held).toHaveProperty('candidate')
  expect(form('candidate: {limit: 50/minute}').values.candidate).toBe('50/minute')
  expect(isForm(readForm('id: [a'))).toBe(false)
  expect(form('').values.limit).toBe('')
})

test('by: [] is one counter for all, and not the default', () => {
  expect(form('by: []').values.by).toBe('[]')
  expect(form('id: a').values.by).toBe('')
  expect(change('id: a\n', 'by', '[]')).toBe('id: a\nby: []\n')
  expect(change('id: a\nby: []\n', 'by', '')).toBe('id: a\n')
})

test('a change of the form shows in the text, and back', () => {
  const cases: [FieldName, string, string][] = [
    ['limit', '30/second', text.replace('limits: [20/second, 5000/hour]\n', '').replace('sk_2: {limit: 1/s}}\n', 'sk_2: {limit: 1/s}}\nlimit: 30/second\n')],
    ['limit', '1/s, 2/m', text.replace('[20/second, 5000/hour]', '[1/s, 2/m]')],
    ['algorithm', 'fixed_window', text.replace('algorithm: leaky_bucket\nmode: queue\nmax_delay: 10s', 'algorithm: fixed_window')],
    ['endpoint', 'GET /v2', text.replace('"/v1/search"', '"GET /v2"')],
    ['status', '', text.replace('count: {status: [4xx, 500]}\n', '')],
    ['strict', '', text.replace('strict: true\n', '')],
    ['cost', '5', `${text}cost: 5\n`],
  ]
  for (const [f, value, want] of cases) {
    const out = change(text, f, value)
    expect(out, f).toBe(want)
    expect(form(out).values[f], f).toBe(value)
  }
})

test('networks, split counters and cooldowns are shown, and stay when something else changes', () => {
  const rule = `id: feed
by: [ip]
ipv4_prefix: 24 # a network of theirs
ipv6_prefix: 48
limit: 10000/second
strict: true
split: 9
abuse: {refusals: 20/minute, drop_after: 1000} # they retry without a pause
`
  const f = form(rule)
  expect(f.values).toMatchObject({ ipv4_prefix: '24', ipv6_prefix: '48', split: '9' })
  expect(f.held).toEqual({ abuse: 'Written in its long form: change it in the YAML.' })
  expect(change(rule, 'limit', '500/second')).toBe(rule.replace('10000', '500'))
  expect(change(rule, 'shadow', 'true')).toBe(`${rule}shadow: true\n`)
  expect(change(rule, 'algorithm', 'fixed_window')).toBe(`${rule}algorithm: fixed_window\n`)
  expect(change(rule, 'ipv4_prefix', '16')).toBe(rule.replace('24 #', '16 #'))
  expect(change(rule, 'split', '')).toBe(rule.replace('split: 9\n', ''))
  for (const abuse of ['true', 'false']) {
    expect(change('id: a\n', 'abuse', abuse)).toBe(`id: a\nabuse: ${abuse}\n`)
    expect(form(`id: a\nabuse: ${abuse}\n`).values.abuse).toBe(abuse)
    expect(change(`id: a\nabuse: ${abuse}\n`, 'abuse', '')).toBe('id: a\n')
  }
  expect(fieldAt('abuse.refusals')).toBe('abuse')
})

test('a number that is none is written as it was typed, for the node to say', () => {
  expect(change('id: a\n', 'burst', '1e')).toBe('id: a\nburst: 1e\n')
  expect(change('id: a\n', 'limit', '100 / minute')).toBe('id: a\nlimit: "100 / minute"\n')
})

test('problems find their field', () => {
  expect(fieldAt('match.endpoint')).toBe('endpoint')
  expect(fieldAt('match')).toBe('endpoint')
  expect(fieldAt('limits[1].burst')).toBe('limit')
  expect(fieldAt('params.window')).toBe('limit')
  expect(fieldAt('count.status[0]')).toBe('status')
  expect(fieldAt('candidate.limit')).toBe('candidate')
  expect(fieldAt('by[0]')).toBe('by')
  expect(fieldAt('override.sk_1')).toBeUndefined()
  expect(fieldAt('')).toBeUndefined()
})

test('a candidate comes, becomes the limit, or goes', () => {
  const rule = 'id: a\nlimit: 100/minute # twice what they need\nburst: 20\n'
  const tried = change(rule, 'candidate', '50/minute')
  expect(tried).toBe(`${rule}candidate: {limit: 50/minute}\n`)
  expect(candidateOf(tried)).toBe('50/minute')
  expect(change(tried, 'candidate', '40/minute')).toBe(`${rule}candidate: {limit: 40/minute}\n`)
  expect(change(tried, 'candidate', '')).toBe(rule)
  expect(enforceCandidate(tried)).toBe('id: a\nlimit: 50/minute # twice what they need\n')
  expect(enforceCandidate('params: {capacity: 9, refill_rate: 1}\ncandidate: {limit: 5/s, burst: 2}\n')).toBe('limit: 5/s\nburst: 2\n')
  expect(enforceCandidate('limits: [1/s, 9/m]\ncandidate: 5/s\n')).toBe('limit: 5/s\n')
})

test('a limit is raised in its place, and all else stays', () => {
  const rule = `id: orders
match: {endpoint: "GET /v1/orders/{id}"} # reads
limit: 60/minute # the database is slow
burst: 20
tiers: {pro: 600/minute, ent: {limit: 900/minute, burst: 5}}
`
  expect(withLimit(rule, 0, '120/minute')).toBe(rule.replace('60/minute #', '120/minute #'))
  expect(withLimit(rule, 0, '700/minute', 'pro')).toBe(rule.replace('pro: 600/minute', 'pro: 700/minute'))
  expect(withLimit(rule, 0, '1000/minute', 'ent')).toBe(rule.replace('limit: 900/minute', 'limit: 1000/minute'))
  expect(withLimit(rule, 1, '120/minute')).toBe(null)
  const several = 'id: address\nby: [ip]\nlimits: [20/s, {limit: 5000/hour}] # as it is written, not as nodes write it\n'
  expect(withLimit(several, 0, '40/second')).toBe(several.replace('20/s', '40/second'))
  expect(withLimit(several, 1, '9000/hour')).toBe(several.replace('5000/hour', '9000/hour'))
  for (const none of ['id: x\nparams: {capacity: 5}\n', 'id: [', '']) expect(withLimit(none, 0, '9/second')).toBe(null)
})

// The question that Why answers. The address contains all of it except the key, the user and the attributes, which may
// be secret.
import { maskIn } from '../../client/known'
import type { Check, ClientName } from '../../wire'

export interface Question {
  rule: string
  client: string // a fingerprint
  as: string // its mask
  method: string
  path: string
  ip: string
  org: string
  tier: string
  cost: string
  unverified: boolean
}

export const nothing: Question = { rule: '', client: '', as: '', method: '', path: '', ip: '', org: '', tier: '', cost: '', unverified: false }

export function readQuestion(query: URLSearchParams): Question {
  const text = (name: keyof Question) => (query.get(name) ?? '').trim()
  return {
    rule: text('rule'),
    client: /^[0-9a-f]{8}$/.test(text('client')) ? text('client') : '',
    as: maskIn(query),
    method: text('method').toUpperCase(),
    path: text('path'),
    ip: text('ip'),
    org: text('org'),
    tier: text('tier'),
    cost: /^\d+$/.test(text('cost')) ? text('cost') : '',
    unverified: query.get('unverified') === 'true',
  }
}

// queryOf returns the query string that readQuestion reads. It leaves out the query of the request's path: rules don't
// see it, and it may contain a secret.
export function queryOf(q: Question): Record<string, string | undefined> {
  const { unverified, ...rest } = q
  return { ...rest, path: rest.path.replace(/[?#].*$/s, ''), as: rest.client ? rest.as : '', unverified: unverified ? 'true' : undefined }
}

// asked returns what an address asks about: a request, only a rule, or nothing yet.
export function asked(q: Question): 'request' | 'rule' | 'nothing' {
  if (q.client || q.method || q.path || q.ip || q.org || q.tier) return 'request'
  return q.rule ? 'rule' : 'nothing'
}

// Secrets are the parts of a question that aren't in the address. They are kept only in the page's memory.
export interface Secrets {
  user: string
  attributes: string // lines of NAME=VALUE
}

// checkOf returns the question in the form that the API takes.
export function checkOf(q: Question, name: ClientName | null, s: Secrets): Check {
  const attributes: Record<string, string> = {}
  for (const line of s.attributes.split('\n')) {
    const at = line.indexOf('=')
    if (at > 0) attributes[line.slice(0, at).trim()] = line.slice(at + 1).trim()
  }
  if (s.user) attributes.user = s.user
  if (q.org) attributes.org = q.org
  if (q.tier) attributes.tier = q.tier
  const c: Check = {}
  if (name && 'key' in name) c.key = name.key
  else if (name && 'client' in name) c.client = name.client
  else if (name && 'user' in name) attributes.user = name.user
  if (q.method) c.method = q.method
  if (q.path) c.path = q.path
  if (q.ip) c.ip = q.ip
  else if (name && 'ip' in name) c.ip = name.ip
  if (Object.keys(attributes).length) c.attributes = attributes
  if (q.cost) c.cost = Number(q.cost)
  return c
}

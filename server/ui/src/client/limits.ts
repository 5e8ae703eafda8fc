import * as api from '../api'
import { decimal, duration } from '../format'
import type { Check, Counter, ExplainedRule, Explanation } from '../wire'

// left is how much of a wait is over the page's head still, counted from when the node told. Never stays never.
export const left = (ms: number, toldAt: number, now: number) => (ms < 0 ? -1 : Math.max(0, ms - Math.max(0, now - toldAt)))

// countdown is a wait in words that change once a second. What is almost over doesn't read as over.
export function countdown(ms: number): string {
  if (ms < 0) return 'never'
  if (ms === 0) return 'now'
  return `in ${duration(Math.ceil(ms / 1000) * 1000)}`
}

// A limit's count is what a slider changes, and what is doubled for whoever raises one: 100/minute becomes 200/minute.
export const countOf = (limit: string): number | undefined => (/^\d+\//.test(limit) ? Number.parseInt(limit) : undefined)
export const withCount = (limit: string, count: number) => limit.replace(/^\d+/, String(count))
export const twice = (limit: string) => (countOf(limit) ? withCount(limit, 2 * countOf(limit)!) : limit)

const limitText = /^\d+(\/(\d+(\.\d+)?)?(ms|s|second|sec|m|min|minute|h|hour|d|day|w|week)s?|\/(\d+(\.\d+)?(ms|[smhdw]))+)?$/i

// limitError says what is wrong with a limit before the node is asked: the node has the last word.
export function limitError(limit: string): string {
  if (!limit.trim()) return 'Give a limit, such as 200/minute.'
  return limitText.test(limit.trim()) ? '' : 'Write a limit as 200/minute, 5/15m or 1000/day; or 200 alone, which keeps the time.'
}

// wireLimit is a limit as the API takes it: a number keeps the window.
export const wireLimit = (limit: string): string | number => (/^\d+$/.test(limit.trim()) ? Number(limit.trim()) : limit.trim())

export const burstError = (burst: string) => (burst.trim() && !/^[1-9]\d*$/.test(burst.trim()) ? 'A whole number, at least 1, or empty.' : '')

// LimitOf is a limit that applies to a request, and where its number stands.
export interface LimitOf {
  rule: string
  policy: string
  limit: string
  at: number // among those of the rule
  of: number // how many the rule has
  source?: ExplainedRule['source']
  tier?: string | undefined
}

// leftOf is how a counter stands: how much is left, or how much is in flight, and of how much.
export function leftOf(c: Counter): { n: string; of: string } {
  if (c.in_flight !== undefined) return { n: decimal(c.in_flight), of: `of ${decimal(c.max)} in flight` }
  return { n: decimal(c.remaining), of: `of ${decimal(c.max)}${c.amount ? ` ${c.amount}` : ''} left` }
}

// limitsOf are those that apply, the one that binds first, as the counters are. A candidate is none.
export function limitsOf(x: Explanation, counters: Counter[]): LimitOf[] {
  const all = x.rules.flatMap((r) => {
    const limits = r.limits ?? []
    const enforced = limits.some((l) => !l.shadow) ? limits.filter((l) => !l.shadow) : limits
    return enforced.map((l, at) => ({ rule: r.rule, policy: l.policy, limit: l.limit, at, of: enforced.length, source: r.source, tier: x.tier }))
  })
  const order = new Map(counters.map((c, i) => [c.policy, i]))
  return all.sort((a, b) => (order.get(a.policy) ?? Infinity) - (order.get(b.policy) ?? Infinity) || 0)
}

export interface Explained {
  x: Explanation
  check: Check
  assumed: { method: string; path: string } | undefined // of the request, since nobody said which
}

// explained explains a request. If nobody said which endpoint it is for, it is one that the rule in question is for.
export async function explained(check: Check, rule: string, o: { unverified?: boolean; signal?: AbortSignal } = {}): Promise<Explained> {
  const x = await api.explain(check, o)
  const asked = x.rules.find((r) => r.rule === rule)
  const assumed = check.path || check.method || !asked || asked.applies ? undefined : asked.request
  if (!assumed) return { x, check, assumed }
  return { x: await api.explain({ ...check, ...assumed }, o), check: { ...check, ...assumed }, assumed }
}

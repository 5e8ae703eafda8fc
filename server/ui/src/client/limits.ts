import * as api from '../api'
import { decimal, duration } from '../format'
import type { Check, Counter, ExplainedRule, Explanation } from '../wire'

// left returns how much of a wait remains, given when the node reported it. A negative wait means never, and stays
// negative.
export const left = (ms: number, toldAt: number, now: number) => (ms < 0 ? -1 : Math.max(0, ms - Math.max(0, now - toldAt)))

// countdown formats a wait as text that changes once a second. It never shows zero before the wait is over.
export function countdown(ms: number): string {
  if (ms < 0) return 'never'
  if (ms === 0) return 'now'
  return `in ${duration(Math.ceil(ms / 1000) * 1000)}`
}

// countOf returns the number of a limit, which sliders change: 100 for 100/minute.
export const countOf = (limit: string): number | undefined => (/^\d+\//.test(limit) ? Number.parseInt(limit) : undefined)
export const withCount = (limit: string, count: number) => limit.replace(/^\d+/, String(count))
export const twice = (limit: string) => (countOf(limit) ? withCount(limit, 2 * countOf(limit)!) : limit)

const limitText = /^\d+(\/(\d+(\.\d+)?)?(ms|s|second|sec|m|min|minute|h|hour|d|day|w|week)s?|\/(\d+(\.\d+)?(ms|[smhdw]))+)?$/i

// limitError returns what is wrong with a limit before the node checks it. The node has the last word.
export function limitError(limit: string): string {
  if (!limit.trim()) return 'Give a limit, such as 200/minute.'
  return limitText.test(limit.trim()) ? '' : 'Write a limit as 200/minute, 5/15m or 1000/day; or 200 alone, which keeps the time.'
}

// wireLimit converts a limit for the API. A bare number keeps the rule's window.
export const wireLimit = (limit: string): string | number => (/^\d+$/.test(limit.trim()) ? Number(limit.trim()) : limit.trim())

export const burstError = (burst: string) => (burst.trim() && !/^[1-9]\d*$/.test(burst.trim()) ? 'A whole number, at least 1, or empty.' : '')

// LimitOf is a limit that applies to a request, and its place in the rule.
export interface LimitOf {
  rule: string
  policy: string
  limit: string
  at: number // index among the rule's limits
  of: number // how many limits the rule has
  source?: ExplainedRule['source']
  tier?: string | undefined
}

// leftOf returns how much of a counter is left (or in flight, for a concurrency limit), and of how much.
export function leftOf(c: Counter): { n: string; of: string } {
  if (c.in_flight !== undefined) return { n: decimal(c.in_flight), of: `of ${decimal(c.max)} in flight` }
  return { n: decimal(c.remaining), of: `of ${decimal(c.max)}${c.amount ? ` ${c.amount}` : ''} left` }
}

// limitsOf returns the limits that apply, in the order of the counters: the binding limit comes first. Candidates are
// left out.
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
  assumed: { method: string; path: string } | undefined // the method and path that were assumed, because the user gave none
}

// explained explains a request. If the user named no endpoint, it assumes one that the rule in question applies to.
export async function explained(check: Check, rule: string, o: { unverified?: boolean; signal?: AbortSignal } = {}): Promise<Explained> {
  const x = await api.explain(check, o)
  const asked = x.rules.find((r) => r.rule === rule)
  const assumed = check.path || check.method || !asked || asked.applies ? undefined : asked.request
  if (!assumed) return { x, check, assumed }
  return { x: await api.explain({ ...check, ...assumed }, o), check: { ...check, ...assumed }, assumed }
}

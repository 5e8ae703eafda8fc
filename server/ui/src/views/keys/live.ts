import type { Document } from '../../wire'
import { limitText } from '../rules/rules-doc'

export interface LiveOverride {
  key: string
  rule: string
  limit: string
  burst: number | null
  expires: string | null
}

// liveOverrides returns the overrides that apply now. Those that end first come first, and those without an end come
// last.
export function liveOverrides(doc: Document, now: number): LiveOverride[] {
  const all: LiveOverride[] = []
  for (const rule of doc.rules ?? []) {
    for (const [key, o] of Object.entries(rule.override ?? {})) {
      const n = typeof o === 'object' ? o : { limit: o }
      if (n.expires && Date.parse(n.expires) <= now) continue
      all.push({ key, rule: rule.id, limit: limitText(n) || 'numbers of its own', burst: n.burst ?? null, expires: n.expires ?? null })
    }
  }
  const end = (o: LiveOverride) => (o.expires ? Date.parse(o.expires) : Infinity)
  return all.sort((a, b) => (end(a) === end(b) ? 0 : end(a) < end(b) ? -1 : 1))
}

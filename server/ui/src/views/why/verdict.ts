// The node's answer in one word.
import type { Tone } from '../../parts/badge'
import type { Counter, Counters } from '../../wire'

export interface Verdict {
  tone: Tone
  word: 'Refused' | 'Blocked' | 'Allowed' | 'Unknown'
  kind: 'denied' | 'bypassed' | 'identity_required' | 'unreadable_path' | 'none' | 'address' | 'unknown' | 'cooldown' | 'limited' | 'within'
  binding?: Counter // the counter that refuses, or else the one with the least left
}

const uncounted: Record<string, Verdict> = {
  denied: { tone: 'bad', word: 'Blocked', kind: 'denied' },
  bypassed: { tone: 'ok', word: 'Allowed', kind: 'bypassed' },
  identity_required: { tone: 'bad', word: 'Refused', kind: 'identity_required' },
  unreadable_path: { tone: 'bad', word: 'Refused', kind: 'unreadable_path' },
}

// verdict depends on the binding counter, which the node lists first.
export function verdict({ reason, counters }: Pick<Counters, 'reason' | 'counters'>): Verdict {
  const binding = counters.find((c) => !c.shadow)
  if (uncounted[reason]) return uncounted[reason]
  // No other counter was checked. The only one in the answer says how long the cooldown lasts.
  if (reason === 'cooldown') return { tone: 'bad', word: 'Refused', kind: 'cooldown', ...(binding ? { binding } : {}) }
  if (!binding) return { tone: 'ok', word: 'Allowed', kind: 'none' }
  if (binding.shared_address) return { tone: 'warn', word: 'Unknown', kind: 'address', binding }
  if (binding.refuses) return { tone: 'bad', word: 'Refused', kind: 'limited', binding }
  if (binding.degraded) return { tone: 'warn', word: 'Unknown', kind: 'unknown', binding }
  return { tone: (binding.used ?? 0) >= 0.8 ? 'warn' : 'ok', word: 'Allowed', kind: 'within', binding }
}

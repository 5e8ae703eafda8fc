// The rules in force, as the list shows them. They are loaded again only when their version changes, because there may
// be ten thousand.
import * as api from '../../api'
import { usePoll } from '../../load'
import type { DocumentRule, LimitForm } from '../../wire'

export interface RuleRow {
  id: string
  limit: string
  applies: string
  by: string
  candidate: string
  shadow: boolean
  text: string // the text that a search looks at
}

export interface Tier {
  name: string
  limit: string
  burst: number | undefined
  simple: boolean // the rule has a single limit, which the console can change
  first: boolean // the tier for requests without one
}

export interface Doc {
  version: number
  rules: RuleRow[]
  tiers: Tier[]
}

// limitText formats a limit, in any of its forms, on one line.
export function limitText(l: LimitForm | undefined): string {
  if (l === undefined || l === null) return ''
  if (typeof l !== 'object') return String(l)
  if (l.limits) return l.limits.map(limitText).join(', ')
  if (l.limit !== undefined) {
    const count = String(l.limit)
    return count.includes('/') || l.window === undefined ? count : `${count}/${seconds(l.window)}`
  }
  if (l.capacity !== undefined) return `${l.capacity}, refills ${l.refill_rate ?? '?'}/s`
  return ''
}

const seconds = (w: string | number) => (typeof w === 'number' ? `${w}s` : w)

function row(r: DocumentRule): RuleRow {
  const m = r.match ?? {}
  const limit = limitText(r.limit ?? (r.limits ? { limits: r.limits } : r.params)) || (r.tiers ? 'per tier' : 'the tier’s')
  const applies =
    [
      m.endpoint,
      m.endpoint_regex && `~ ${m.endpoint_regex}`,
      m.api_key_pattern && `key ${m.api_key_pattern}`,
      m.api_key && `key ${m.api_key}`,
      m.descriptor && `descriptor ${m.descriptor.join(', ')}`,
      r.tier && `tier ${r.tier}`,
    ]
      .filter(Boolean)
      .join(' · ') || 'everything'
  const by = typeof r.by === 'string' ? r.by : r.by ? r.by.join(', ') || 'all together' : m.descriptor ? 'descriptor' : 'api_key'
  const candidate = limitText(r.candidate)
  return { id: r.id, limit, applies, by, candidate, shadow: r.shadow === true, text: `${r.id} ${limit} ${applies} ${by} ${r.layer ?? ''} ${r.algorithm ?? ''}`.toLowerCase() }
}

export function readDoc(d: Awaited<ReturnType<typeof api.document>>): Doc {
  const tiers = Object.entries(d.document?.tiers ?? {})
  const first = d.document?.default_tier ?? tiers[0]?.[0]
  return {
    version: d.version,
    rules: (d.document?.rules ?? []).map(row),
    tiers: tiers.map(([name, l]) => ({
      name,
      limit: limitText(l),
      burst: typeof l === 'object' ? l.burst : undefined,
      simple: typeof l !== 'object' || (l.limit !== undefined && l.limits === undefined),
      first: name === first,
    })),
  }
}

let cached: Doc | undefined

export function useRulesDoc(): { doc: Doc | undefined; error: api.ApiError | undefined; reload: () => void } {
  const { data, error, reload } = usePoll(
    async (signal) => {
      const known = cached && (await api.nodes(signal)).nodes.find((n) => n.self)?.rules_version
      if (!cached || known !== cached.version) cached = readDoc(await api.document(signal))
      return cached
    },
    3000,
    [],
  )
  return { doc: data ?? cached, error, reload }
}

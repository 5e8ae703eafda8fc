import { duration, plural, sentence } from '../../format'
import type { FailureTotal, Node, Nodes, Now, TroubleItem } from '../../wire'

const titles: Record<TroubleItem['what'], string> = {
  store_lost: 'The store is lost',
  store_evicts: 'The store evicts counters',
  store_credentials: "The store's new credentials aren't in use",
  node_stale: 'Not every node is heard',
  rules_stale: 'The rules may be out of date',
  no_rules: 'This node has no rules yet',
  rules_rejected: 'Newer rules were rejected',
  rules_warning: 'The rules need a look',
  degraded: 'Checks are made without the store',
  overloaded: 'This node is overloaded',
  clock_drift: "The node's clock is off",
  region_lost: "A region can't be reached",
}

const grave = new Set<string>(['store_lost', 'no_rules', 'degraded', 'overloaded'])

export const titleOf = (t: TroubleItem) => titles[t.what] ?? t.what
export const toneOf = (t: TroubleItem) => (grave.has(t.what) ? 'bad' : 'warn')

export interface NodeRow extends Node {
  gone?: number // when it was last heard, in ms, if it isn't listed any more; then all else is what it said last
  left?: boolean // it took its leave, as a node that is stopped does
}

const missed = 10 * 60_000
const silent = 5000

// remember keeps nodes that aren't listed any more for ten minutes, so that one that was killed doesn't just vanish.
export function remember(before: NodeRow[], nodes: Nodes, now: number): NodeRow[] {
  const rows: NodeRow[] = nodes.nodes.map((n) => ({ ...n }))
  const there = new Set(rows.map((n) => n.name))
  for (const n of before) {
    const gone = n.gone ?? now - n.seen_ms_ago
    // A killed node is listed for a while, and silent.
    if (!there.has(n.name) && now - gone < missed) rows.push({ ...n, gone, left: n.left ?? n.seen_ms_ago < silent })
  }
  return rows.sort((a, b) => Number(b.self) - Number(a.self) || a.name.localeCompare(b.name))
}

// few keeps a long list short: what isn't well comes first, and the rest is counted.
export function few<T>(rows: T[], well: (row: T) => boolean, most = 12): { rows: T[]; more: number; ill: number } {
  if (rows.length <= most) return { rows, more: 0, ill: 0 }
  const sorted = [...rows.filter((r) => !well(r)), ...rows.filter(well)]
  const rest = sorted.slice(most)
  return { rows: sorted.slice(0, most), more: rest.length, ill: rest.filter((r) => !well(r)).length }
}

// differ says which nodes decide by other rules than this one.
export function differ(rows: NodeRow[]): NodeRow[] {
  const self = rows.find((n) => n.self)
  if (!self?.rules_text_hash) return []
  return rows.filter((n) => !n.gone && n.rules_text_hash && n.rules_text_hash !== self.rules_text_hash)
}

// rest is the last row of a list that was kept short.
export function rest({ more, ill }: { more: number; ill: number }, of: string): string {
  return more ? `and ${plural(more, `more ${of}`)}, ${ill ? `${plural(ill, 'of them isn’t', 'of them aren’t')} well` : 'all well'}` : ''
}

// nodesSay is what is known of the nodes, for a page that says that all is well: only those that were heard just now count.
export function nodesSay(rows: NodeRow[], nodes: Nodes | undefined, error: { message: string } | undefined): { well: boolean; text: string } {
  const live = rows.filter((n) => !n.gone)
  if (error) return { well: false, text: `What the other nodes do isn't known: ${sentence(error.message)}` }
  if (nodes?.stale) return { well: false, text: `The other nodes were last heard ${duration((nodes.age_seconds ?? 0) * 1000)} ago.` }
  const silent = live.filter((n) => n.store !== 'up').map((n) => n.name)
  if (silent.length) return { well: false, text: `Not heard just now: ${silent.join(', ')}.` }
  if (live.length > 1) return { well: true, text: `All ${live.length} nodes are heard and have the same rules.` }
  return { well: true, text: live.length ? 'This is the only node.' : '' }
}

export interface ModeGroup extends FailureTotal {
  names: string[] // of some of its rules
}

// modes groups rules that do the same without the store, those that refuse first.
export function modes(now: Now): ModeGroup[] {
  return now.failure_totals.map((t) => ({ ...t, names: now.failure_modes.filter((m) => m.mode === t.mode && m.text === t.text).map((m) => m.rule) }))
}

// lived leaves out the seconds before the node began: then nothing was decided, and nothing was there to decide.
export function lived(now: Now, values: number[]): (number | null)[] {
  const slots = Math.ceil((Date.parse(now.at) - Date.parse(now.started)) / 1000 / now.slot_seconds)
  return values.map((v, i) => (i < values.length - slots ? null : v))
}

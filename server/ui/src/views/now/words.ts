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
  gone?: number // set if the node isn't listed anymore: when it was last heard from, in ms; the other fields are its last known values
  left?: boolean // the node announced that it was stopping
}

const missed = 10 * 60_000
const silent = 5000

// remember keeps nodes that aren't listed anymore for ten minutes, so that a node that was killed doesn't just
// disappear.
export function remember(before: NodeRow[], nodes: Nodes, now: number): NodeRow[] {
  const rows: NodeRow[] = nodes.nodes.map((n) => ({ ...n }))
  const there = new Set(rows.map((n) => n.name))
  for (const n of before) {
    const gone = n.gone ?? now - n.seen_ms_ago
    // A killed node stays listed for a while, without heartbeats.
    if (!there.has(n.name) && now - gone < missed) rows.push({ ...n, gone, left: n.left ?? n.seen_ms_ago < silent })
  }
  return rows.sort((a, b) => Number(b.self) - Number(a.self) || a.name.localeCompare(b.name))
}

// few shortens a long list. Rows with problems come first, and the rows that don't fit are counted.
export function few<T>(rows: T[], well: (row: T) => boolean, most = 12): { rows: T[]; more: number; ill: number } {
  if (rows.length <= most) return { rows, more: 0, ill: 0 }
  const sorted = [...rows.filter((r) => !well(r)), ...rows.filter(well)]
  const rest = sorted.slice(most)
  return { rows: sorted.slice(0, most), more: rest.length, ill: rest.filter((r) => !well(r)).length }
}

// differ returns the nodes that use other rules than this one.
export function differ(rows: NodeRow[]): NodeRow[] {
  const self = rows.find((n) => n.self)
  if (!self?.rules_text_hash) return []
  return rows.filter((n) => !n.gone && n.rules_text_hash && n.rules_text_hash !== self.rules_text_hash)
}

// rest returns the text of the last row of a list that was shortened.
export function rest({ more, ill }: { more: number; ill: number }, of: string): string {
  return more ? `and ${plural(more, `more ${of}`)}, ${ill ? `${plural(ill, 'of them isn’t', 'of them aren’t')} well` : 'all well'}` : ''
}

// nodesSay describes the state of the nodes for the status line. All is well only if every node was heard from just now.
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
  names: string[] // names of some of these rules
}

// modes groups rules by what they do without the store. Rules that refuse come first.
export function modes(now: Now): ModeGroup[] {
  return now.failure_totals.map((t) => ({ ...t, names: now.failure_modes.filter((m) => m.mode === t.mode && m.text === t.text).map((m) => m.rule) }))
}

// lived replaces values from before the node started with null, because there were no decisions to count then.
export function lived(now: Now, values: number[]): (number | null)[] {
  const slots = Math.ceil((Date.parse(now.at) - Date.parse(now.started)) / 1000 / now.slot_seconds)
  return values.map((v, i) => (i < values.length - slots ? null : v))
}

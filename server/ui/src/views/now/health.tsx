import type { ApiError } from '../../api'
import { plural, rate, sentence } from '../../format'
import { Trouble } from '../../parts/trouble'
import type { Nodes, Now } from '../../wire'
import { differ, nodesSay, titleOf, toneOf, type NodeRow } from './words'

interface HealthProps {
  now: Now
  rows: NodeRow[]
  nodes: Nodes | undefined
  unheard: ApiError | undefined // the error of the request for the list of nodes
  error: ApiError | undefined // the error of the request to this node
  at: number
}

// Health is always on the page, so that the page doesn't move when problems end.
export function Health({ now, rows, nodes, unheard, error, at }: HealthProps) {
  const others = differ(rows)
  const lost = rows.filter((n) => !n.self && !n.gone && n.store === 'degraded')
  const troubled = error || now.trouble.length || others.length || lost.length
  const slow = now.totals.degraded_per_second
  const known = nodesSay(rows, nodes, unheard)
  const word = slow ? 'The store is slow' : known.well ? 'All is well' : 'This node is well'
  const lostTitle = `${plural(lost.length, 'other node')} can't reach ${lost.length === 1 ? 'its' : 'their'} store`
  const differTitle = 'Not all nodes have the same rules'
  const titles = [error && 'No answer from this node', ...now.trouble.map(titleOf), lost.length && lostTitle, others.length && differTitle].filter(Boolean)
  return (
    <div class="stack health">
      {/* The numbers change every second. The text for screen readers changes only with the state. */}
      <p class="hidden" role="status">
        {troubled ? titles.join('. ') : slow || !known.well ? word : 'No trouble'}
      </p>
      {!troubled && (
        <Trouble tone={word === 'All is well' ? 'ok' : 'warn'} title={word}>
          <p>
            {slow > 0
              ? `${rate(slow)} checks a second had no answer from it in time, and were decided without it, as each rule says below.`
              : `The store is up. ${known.text}`}
          </p>
        </Trouble>
      )}
      {error && (
        <Trouble tone="bad" title="No answer from this node" since={new Date(at).toISOString()}>
          <p>{error.message} The figures below are the last that it told.</p>
        </Trouble>
      )}
      {now.trouble.map((t, i) => (
        <Trouble key={`${t.what} ${i}`} tone={toneOf(t)} title={titleOf(t)} since={t.since}>
          <p>{sentence(t.text)}</p>
        </Trouble>
      ))}
      {lost.length > 0 && (
        <Trouble tone="bad" title={lostTitle}>
          <p>{lost.map((n) => (n.lost?.length ? `${n.name} (${n.lost.join(', ')})` : n.name)).join('; ')}. There rules do what they are to do without the store; see below.</p>
        </Trouble>
      )}
      {others.length > 0 && (
        <Trouble title={differTitle}>
          <p>{others.map((n) => `${n.name} has version ${n.rules_version}`).join(', ')}. After a change that is so for up to two seconds.</p>
        </Trouble>
      )}
    </div>
  )
}

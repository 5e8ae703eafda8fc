import type { ComponentChildren } from 'preact'
import { clock, percent, plural } from '../format'
import type { Span } from '../wire'
import './client.css'

// Coverage shows which share of the requests an answer covers, and from which nodes it comes.
export function Coverage({ of, share, children }: { of: Pick<Span, 'nodes' | 'nodes_missing' | 'partial'> & Partial<Span>; share?: number; children?: ComponentChildren }) {
  const sampled = Math.round(Math.max(1, ...of.nodes.map((n) => n.sampled_one_in)))
  return (
    <span class="coverage">
      <span title={of.nodes.map((n) => n.name).join(', ')}>{plural(of.nodes.length, 'node')}</span>
      {of.nodes_missing.length > 0 ? (
        <span class="text-warn" title={of.partial}>
          without {of.nodes_missing.join(', ')}
        </span>
      ) : (
        of.partial && <span class="text-warn">{of.partial}</span>
      )}
      <WholeSince of={of} />
      {sampled > 1 && <span>one decision in {sampled} looked at</span>}
      {share !== undefined && (
        <span class={share < 0.8 ? 'text-warn' : ''} title="The share of the requests that were made by keys which the nodes remember: a thousand of each rule">
          covers {percent(share)} of the requests
        </span>
      )}
      {children}
    </span>
  )
}

// WholeSince shows since when an answer about the last hour includes all nodes. It shows nothing if it includes them
// for the whole hour.
function WholeSince({ of }: { of: Pick<Span, 'nodes'> & Partial<Span> }) {
  if (!of.whole_since || !of.from || !of.nodes_gone || Date.parse(of.whole_since) <= Date.parse(of.from)) return null
  const from = Date.parse(of.from)
  const began = of.nodes.filter((n) => Date.parse(n.since) > from)
  const why = [...began.map((n) => `${n.name} counts since ${clock(n.since)}`), ...of.nodes_gone.map((n) => `${n.name} ended at ${clock(n.seen)}, with what it had counted`)]
  return (
    <span class="text-warn" title={why.join('; ')}>
      whole since {clock(of.whole_since)}
    </span>
  )
}

import type { ApiError } from '../../api'
import { nodeTime } from '../../clock'
import { duration, full } from '../../format'
import { Badge } from '../../parts/badge'
import { Card } from '../../parts/card'
import { Loading } from '../../parts/loading'
import { Mini } from '../../parts/mini'
import type { Nodes } from '../../wire'
import { few, rest, type NodeRow } from './words'

// NodesCard lists the nodes, including those that are no longer heard from.
export function NodesCard({ rows, nodes, error }: { rows: NodeRow[]; nodes: Nodes | undefined; error: ApiError | undefined }) {
  const self = rows.find((n) => n.self)
  const list = few(rows, (n) => !n.self && !n.gone && n.store === 'up' && !n.warning)
  const other = (n: NodeRow) => self && n.rules_text_hash && n.rules_text_hash !== self.rules_text_hash
  return (
    <Card title="Nodes" aside={<Heard nodes={nodes} error={error} />} flush>
      {error && !rows.length ? <p class="note">{error.message}</p> : null}
      {!error && !rows.length ? <Loading rows={3} /> : null}
      {rows.length > 0 && (
        <Mini
          label="Nodes"
          rows={list.rows}
          rowKey={(n) => n.name}
          rowClass={(n) => (n.gone ? 'gone' : '')}
          below={(n) => n.warning && <span class="text-warn">{n.warning}</span>}
          last={rest(list, 'node')}
          columns={[
            {
              id: 'node',
              head: 'Node',
              cell: (n) => (
                <span title={`${n.name}, version ${n.version}`}>
                  {n.name} {n.self && <small>this</small>}
                  <small class="below-640">{n.version}</small>
                </span>
              ),
            },
            { id: 'version', head: 'Version', width: '5.5rem', wide: 640, cell: (n) => <span title={n.version}>{n.version}</span> },
            { id: 'state', head: 'State', width: '6.75rem', cell: (n) => <State n={n} stale={nodes?.stale ?? false} /> },
            { id: 'rules', head: 'rules', number: true, width: '3.5rem', cell: (n) => <span class={other(n) ? 'text-warn' : ''}>{n.rules_version}</span> },
            { id: 'heard', head: 'heard', number: true, width: '5rem', wide: 640, cell: (n) => (n.gone ? `${duration(Math.max(1000, Math.floor((nodeTime() - n.gone) / 1000) * 1000))} ago` : heard(n.seen_ms_ago)) },
          ]}
        />
      )}
    </Card>
  )
}

function Heard({ nodes, error }: { nodes: Nodes | undefined; error: ApiError | undefined }) {
  if (error) return <span class="text-bad">as it was last told</span>
  if (nodes?.stale) return <span class="text-bad">as of {duration((nodes.age_seconds ?? 0) * 1000)} ago: the store is lost</span>
  return <>heard every two seconds</>
}

const heard = (ms: number) => (ms < 1000 ? 'now' : `${Math.round(ms / 1000)} s ago`)

function State({ n, stale }: { n: NodeRow; stale: boolean }) {
  if (n.gone && n.left) return <Badge title={`It was stopped; last heard ${full(n.gone)}.`}>stopped</Badge>
  if (n.gone) {
    return (
      <Badge tone="bad" title={`Last heard ${full(n.gone)}. It has ended, hangs, or can't reach the store.`}>
        gone
      </Badge>
    )
  }
  if (n.store === 'up') return <Badge tone="ok">up</Badge>
  if (n.store === 'degraded') {
    return (
      <Badge tone="bad" title={n.lost?.length ? `It can't reach ${n.lost.join(', ')}` : undefined}>
        store lost
      </Badge>
    )
  }
  return (
    <Badge tone="warn" title={stale ? "This node can't hear of the others without the store." : "It hasn't been heard for five seconds."}>
      {stale ? 'unknown' : 'silent'}
    </Badge>
  )
}

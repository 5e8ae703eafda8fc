import type { ApiError } from '../../api'
import { count, rate } from '../../format'
import { Card } from '../../parts/card'
import { Loading } from '../../parts/loading'
import { Mini } from '../../parts/mini'
import { Time } from '../../parts/time'
import { to } from '../../router'
import type { Top, TopRule } from '../../wire'

const shown = 8

// RulesNow shows the busiest rules across all nodes, and their sum.
export function RulesNow({ top, error }: { top: Top | undefined; error: ApiError | undefined }) {
  const rules = top?.rules ?? []
  const sum = rules.reduce((s, r) => ({ requests: s.requests + r.requests, refused: s.refused + r.refused }), { requests: 0, refused: 0 })
  return (
    <Card title="Rules at work" aside={top && <Nodes top={top} />} flush class="at-work">
      {!top && (error ? <p class="note">{error.message}</p> : <Loading rows={5} />)}
      {top && (
        <Mini
          label="Rules at work"
          rows={busiest(rules)}
          rowKey={(r) => r.rule}
          columns={[
            { id: 'rule', head: 'Rule', cell: (r) => <a href={to('rules', r.rule)}>{r.rule}</a> },
            { id: 'bound', head: 'bound/s', number: true, cell: (r) => rate(r.requests) },
            { id: 'refused', head: 'refused/s', number: true, cell: (r) => <span class={r.refused ? 'text-bad' : ''}>{rate(r.refused)}</span> },
            { id: 'last', head: 'last refusal', number: true, width: '7rem', wide: 640, cell: (r) => <Time at={r.last_refusal} /> },
          ]}
          foot={[rules.length > shown ? <a href={to('rules')}>All {count(rules.length)} rules</a> : 'All rules', rate(sum.requests), rate(sum.refused), '']}
        />
      )}
    </Card>
  )
}

// busiest sorts rules by their rate, rounded to powers of two, so that rows rarely change places.
function busiest(rules: TopRule[]): TopRule[] {
  const rank = (r: TopRule) => Math.floor(Math.log2(r.requests + 1))
  const busy = rules.filter((r) => r.requests > 0).sort((a, b) => rank(b) - rank(a) || a.rule.localeCompare(b.rule))
  const idle = rules.filter((r) => r.requests === 0)
  return [...busy, ...idle].slice(0, shown)
}

function Nodes({ top }: { top: Top }) {
  const missing = top.nodes_missing
  if (missing.length) return <span class="text-warn">without {missing.join(', ')}</span>
  if (top.partial) return <span class="text-warn" title={top.partial}>this node alone</span>
  return <>{top.nodes.length > 1 ? `sum of ${top.nodes.length} nodes` : 'this node'}</>
}

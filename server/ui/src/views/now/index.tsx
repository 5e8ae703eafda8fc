// Now: what this node is doing, the state of its store and of the other nodes, and what is wrong.
import { useEffect, useRef, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { nodeTime } from '../../clock'
import { bytes, clock, count, micros, percent, rate } from '../../format'
import { useLive, type Live } from '../../live'
import { usePoll } from '../../load'
import { Badge } from '../../parts/badge'
import { Card } from '../../parts/card'
import { Chart } from '../../parts/chart'
import { CliLine } from '../../parts/cliline'
import { Failed } from '../../parts/failed'
import { Loading } from '../../parts/loading'
import { Meter } from '../../parts/meter'
import { Mini } from '../../parts/mini'
import { Page } from '../../parts/page'
import { Stat } from '../../parts/stat'
import { Time } from '../../parts/time'
import { to } from '../../router'
import { edges, reasons } from '../../words'
import type { Now as Figures, Nodes } from '../../wire'
import { Health } from './health'
import { Meanwhile } from './meanwhile'
import { NodesCard } from './nodes'
import { RulesNow } from './rules'
import { StoreCard } from './store'
import { lived, remember, type NodeRow } from './words'
import './now.css'

export default function Now() {
  const live = useLive(1000)
  const nodes = usePoll((signal) => api.nodes(signal), 2000, [])
  // The answer lists every rule, so with many rules it is requested less often.
  const [many, setMany] = useState(false)
  const top = usePoll((signal) => api.top({ k: 1 }, signal), many ? 10_000 : 2000, [])
  useEffect(() => setMany((top.data?.rules.length ?? 0) > 1000), [top.data])
  const rows = useRemembered(nodes.data)
  const { data, error } = live

  return (
    <Page title="Now" lead="What this node decides, and how its store and the other nodes are, as the node itself sees it." actions={<Pulse live={live} />}>
      {data ? (
        <>
          <Health now={data} rows={rows} nodes={nodes.data} unheard={nodes.error} error={error} at={live.at} />
          <div class={error ? 'stack stale' : 'stack'}>
            <Figures now={data} />
            <Charts now={data} />
            <div class="now-grid">
              <NodesCard rows={rows} nodes={nodes.data} error={nodes.error} />
              <StoreCard now={data} />
              <RulesNow top={top.data} error={top.error} />
              <Where now={data} />
              <Meanwhile now={data} />
              <ThisNode now={data} />
            </div>
            <div class="columns">
              <CliLine>{cli.top()}</CliLine>
              <CliLine>{cli.nodes()}</CliLine>
            </div>
          </div>
        </>
      ) : error ? (
        <Failed error={error} retry={live.reload} />
      ) : (
        <Loading rows={12} />
      )}
    </Page>
  )
}

// useRemembered lists the nodes, including those that have left since the page was opened.
function useRemembered(nodes: Nodes | undefined): NodeRow[] {
  const kept = useRef<{ of?: Nodes; rows: NodeRow[] }>({ rows: [] })
  if (nodes && kept.current.of !== nodes) kept.current = { of: nodes, rows: remember(kept.current.rows, nodes, nodeTime()) }
  return kept.current.rows
}

function Pulse({ live }: { live: Live }) {
  if (live.error) return <Badge tone="bad">No answer since {clock(live.at)}</Badge>
  return (
    <Badge tone="accent" title="Asked of this node every second">
      Live
    </Badge>
  )
}

function Figures({ now }: { now: Figures }) {
  const t = now.totals
  const share = t.decisions_per_second ? t.refused_per_second / t.decisions_per_second : 0
  return (
    <dl class="stats">
      <Stat label="Decisions a second" hint={t.degraded_per_second > 0 ? <span class="text-bad">{rate(t.degraded_per_second)}/s without store</span> : `mean of ${over(now)}`}>
        {figure(t.decisions_per_second)}
      </Stat>
      <Stat label="Refused a second" hint={`${percent(share)} of decisions`}>
        {figure(t.refused_per_second)}
      </Stat>
      <Stat label="Latency, median" hint={now.latency.measured ? `${count(now.latency.measured)} measured in ${Math.round(now.latency.over_seconds)} s` : 'none was measured'}>
        {latency(now.latency.p50_us)}
      </Stat>
      <Stat label="Latency, 99 of 100" hint="took no longer">
        {latency(now.latency.p99_us)}
      </Stat>
      <Stat
        label="Decided on the node"
        hint={now.lease ? `${count(now.lease.tokens)} tokens borrowed` : 'in-process store'}
      >
        {now.lease ? (now.lease.local_share === null ? '–' : percent(now.lease.local_share)) : '100%'}
      </Stat>
      <Stat label="In flight" hint={`of at most ${count(now.max_in_flight)}`}>
        {count(now.in_flight)}
      </Stat>
    </dl>
  )
}

const figure = (n: number) => (n < 10 ? rate(n) : n < 100_000 ? count(n) : rate(n))

// The number and its unit are one text, because a separate unit would move when the number of digits changes.
const latency = (us: number | null) => (us === null ? '–' : micros(us))

function Charts({ now }: { now: Figures }) {
  const s = now.series
  const end = Date.parse(now.at) / 1000
  return (
    <div class="columns">
      <Card title="Decisions a second" aside="this node, two minutes">
        <Chart
          label="Decisions a second over two minutes"
          end={end}
          step={now.slot_seconds}
          format={rate}
          lines={[
            { label: 'decided', values: lived(now, s.decisions), token: '--accent', fill: true },
            { label: 'refused', values: lived(now, s.refused), token: '--bad', fill: true },
            { label: 'without the store', values: lived(now, s.degraded), token: '--warn', dash: true },
          ]}
        />
      </Card>
      <Card title="Latency of a decision" aside="one in 64 is measured">
        <Chart
          label="Latency of decisions over two minutes"
          end={end}
          step={now.slot_seconds}
          format={micros}
          lines={[
            { label: 'median', values: s.p50_us, token: '--accent' },
            { label: '99 of 100', values: s.p99_us, token: '--warn', dash: true },
          ]}
        />
      </Card>
    </div>
  )
}

// Where counts decisions by edge and by reason. An edge or a reason that was seen once keeps its row, so that nothing
// moves.
function Where({ now }: { now: Figures }) {
  const { by_edge: byEdge, by_reason: byReason } = now.totals
  const seen = useRef({ edges: new Set<string>(), reasons: new Set<string>() }).current
  Object.keys(byEdge).forEach((e) => seen.edges.add(e))
  Object.keys(byReason).forEach((r) => seen.reasons.add(r))
  const name = (words: Record<string, string>) => (id: string) => (
    <>
      {id} <small>{words[id]}</small>
    </>
  )
  const none = seen.edges.size ? '' : <span class="muted">No request in the last {over(now)}.</span>
  return (
    <Card title="Where and why" aside={`this node, mean of ${over(now)}`} flush>
      <Mini
        label="Where decisions are asked for"
        rows={[...seen.edges].sort()}
        rowKey={(e) => e}
        columns={[
          { id: 'edge', head: 'Edge', cell: name(edges) },
          { id: 'decided', head: 'decided/s', number: true, cell: (e) => rate(byEdge[e]?.decisions_per_second ?? 0) },
          { id: 'refused', head: 'refused/s', number: true, cell: (e) => rate(byEdge[e]?.refused_per_second ?? 0) },
        ]}
        last={none}
      />
      <Mini
        label="Why they are as they are"
        rows={[...seen.reasons].sort()}
        rowKey={(r) => r}
        columns={[
          { id: 'reason', head: 'Reason', cell: name(reasons) },
          { id: 'decided', head: 'decided/s', number: true, cell: (r) => rate(byReason[r] ?? 0) },
        ]}
        last={none}
      />
    </Card>
  )
}

const over = (now: Figures) => `${Math.round(now.totals.over_seconds)} s`

function ThisNode({ now }: { now: Figures }) {
  const m = now.memory
  const share = m.cap ? m.bytes / m.cap : 0
  return (
    <Card title="This node">
      <dl class="pairs">
        <dt>Name</dt>
        <dd>{now.node}</dd>
        <dt>Version</dt>
        <dd>{now.version}</dd>
        <dt>Started</dt>
        <dd>
          <Time at={now.started} />
        </dd>
        <dt>Rules</dt>
        <dd>
          <a href={to('history')}>version {count(now.rules_version)}</a>
        </dd>
        <dt>In force here</dt>
        <dd>
          <Time at={now.rules_since} none="not yet" />
        </dd>
        <dt>Counters in this process</dt>
        <dd>{count(m.counters)}</dd>
        <dt>
          Their memory, of {bytes(m.cap)}
          <Meter share={share} label="Memory for counters" />
        </dt>
        <dd>{bytes(m.bytes)}</dd>
        <dt title="A client whose counter was forgotten begins with a full one. Raise --memory-cap if this grows.">Forgotten before they were full</dt>
        <dd class={m.evictions ? 'text-warn' : ''}>{count(m.evictions)}</dd>
      </dl>
    </Card>
  )
}

// Tail: this node's decisions as they are made.
import { useEffect, useRef, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { maskIn } from '../../client/known'
import { nodeTime } from '../../clock'
import { clock, count, duration } from '../../format'
import { useKeys } from '../../keyboard'
import { asError } from '../../load'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { CliLine } from '../../parts/cliline'
import { Empty } from '../../parts/empty'
import { Field, Segments, Select } from '../../parts/field'
import { Icon } from '../../parts/icon'
import { Page } from '../../parts/page'
import { Table, type Column } from '../../parts/table'
import { toast } from '../../parts/toast'
import { navigate, to, useQuery, useRoute } from '../../router'
import { edges, reasons } from '../../words'
import type { EventFilter, Pulse } from '../../wire'
import { Buffer, kept, type Row } from './buffer'
import './tail.css'

export default function Tail() {
  const [outcome, setOutcome] = useQuery<'' | 'refused' | 'allowed'>('outcome', '')
  const [rule, setRule] = useQuery('rule', '')
  const [edge, setEdge] = useQuery('edge', '')
  const { query } = useRoute()
  const client = query.get('client') ?? ''
  const as = maskIn(query) || client
  const [paused, setPaused] = useState(false)
  const filter: EventFilter = { outcome, rule, client, edge }
  const { buffer, pulse, error, connected, hidden } = useEvents(filter, paused)

  const resume = () => {
    setPaused(false)
    scrollTo(0, 0)
    ;(document.activeElement as HTMLElement | null)?.blur()
  }
  useKeys([
    { keys: 'p', says: paused ? 'Go on' : 'Pause', run: () => (paused ? resume() : setPaused(true)) },
    { keys: 'c', says: 'Clear', run: () => (buffer.clear(), setPaused(false)) },
  ])
  const filtered = Boolean(outcome || rule || client || edge)

  return (
    <Page
      title="Tail"
      lead="Decisions of this node as they are made, newest first. Keys and users are masked."
      actions={
        <Button onClick={() => (paused ? resume() : setPaused(true))} pressed={paused}>
          <Icon name={paused ? 'play' : 'pause'} /> {paused ? 'Go on' : 'Pause'}
        </Button>
      }
    >
      <div class="tail-filter">
        <Segments
          label="Outcome"
          value={outcome}
          onChange={setOutcome}
          options={[
            ['', 'All'],
            ['refused', 'Refused'],
            ['allowed', 'Allowed'],
          ]}
        />
        <RuleField rule={rule} setRule={setRule} />
        <Select label="Edge" value={edge} onChange={setEdge} options={[['', 'Every edge'], ...Object.keys(edges).map((e): [string, string] => [e, e])]} />
        {client && (
          <div class="field tail-client">
            <span class="tail-label">Client</span>
            <Button onClick={() => navigate(to('tail', '', { outcome, rule, edge }), { replace: true })} label={`Show every client, not just ${as}`}>
              <span class="mono clip">{as}</span> <Icon name="close" />
            </Button>
          </div>
        )}
      </div>
      <CliLine>{cli.tail(filter)}</CliLine>
      <Card flush>
        <div class="tail-head">
          <Told pulse={pulse} connected={connected} error={error} />
          <Waiting n={buffer.waits} paused={paused} hidden={hidden} onResume={resume} />
        </div>
        <Table
          label="Decisions"
          stream
          rows={buffer.rows}
          columns={columns}
          rowKey={(r) => r.id}
          href={why}
          empty={
            <Empty title={error ? "The stream couldn't be opened" : filtered ? 'No decision fits the filter yet' : 'No decision yet'}>
              <p>{error ? error.message : filtered ? 'New ones show up here as they are made.' : 'Requests show up here as this node decides them. Send one:'}</p>
              {!error && !filtered && <CliLine>weir check --key sk_test_1 --method GET --path /v1/orders/17</CliLine>}
              {error && <p class="muted">It is tried again every three seconds.</p>}
            </Empty>
          }
        />
      </Card>
    </Page>
  )
}

// RuleField restarts the stream only when the user has stopped typing.
function RuleField({ rule, setRule }: { rule: string; setRule: (r: string) => void }) {
  const [text, setText] = useState(rule)
  useEffect(() => setText(rule), [rule])
  useEffect(() => {
    const timer = setTimeout(() => text !== rule && setRule(text.trim()), 400)
    return () => clearTimeout(timer)
  }, [text])
  return <Field label="Rule" search mono value={text} onInput={setText} placeholder="every rule" />
}

const why = (r: Row) => to('why', '', { client: r.fingerprint, as: r.client, rule: r.rule })

const columns: Column<Row>[] = [
  { id: 'time', head: 'Time', width: '5.5rem', wide: 640, cell: (r) => <span class="num" title={r.time}>{clock(r.time)}</span> },
  {
    id: 'outcome',
    head: 'Outcome',
    width: '6.75rem',
    cell: (r) => (
      <a class="tail-why" href={why(r)} title="Why">
        <Badge tone={r.outcome === 'refused' ? 'bad' : 'ok'}>{r.outcome}</Badge>
      </a>
    ),
  },
  {
    id: 'client',
    head: 'Client',
    width: 'min(9rem, 32vw)',
    cell: (r) =>
      r.fingerprint ? (
        <a class="mono" href={to('keys', r.fingerprint, { as: r.client })}>
          {r.client}
        </a>
      ) : (
        <span class="muted">unknown</span>
      ),
  },
  { id: 'rule', head: 'Rule', width: 'min(8.5rem, 25vw)', cell: (r) => (r.rule ? <a href={to('rules', r.rule)}>{r.rule}</a> : <span class="muted">none</span>) },
  {
    id: 'reason',
    head: 'Reason',
    width: '9rem',
    wide: 960,
    cell: (r) => (
      <span title={reasons[r.reason]}>
        {r.reason} {r.shadow.length > 0 && <Badge tone="warn" title={`In shadow, these would have refused it: ${r.shadow.join(', ')}`}>shadow</Badge>}
      </span>
    ),
  },
  {
    id: 'request',
    head: 'Request',
    title: 'The method, and the pattern of the rule that binds',
    wide: 640,
    cell: (r) => (
      <span class="mono" title={`${r.method} ${r.path}`}>
        {r.method} {r.path}
      </span>
    ),
  },
  { id: 'left', head: 'Left', title: 'Tokens left of the limit that binds; of a refusal, when to try again', number: true, width: '8.5rem', wide: 960, cell: left },
  { id: 'edge', head: 'Edge', width: '6.5rem', wide: 1600, cell: (r) => <span title={edges[r.edge]}>{r.edge}</span> },
]

function left(r: Row): string {
  if (r.outcome === 'refused') return r.retry_after_ms < 0 ? 'never again' : r.retry_after_ms > 0 ? `again in ${duration(r.retry_after_ms)}` : ''
  return r.limit > 0 && r.remaining >= 0 ? `${count(r.remaining)} of ${count(r.limit)}` : ''
}

function Told({ pulse, connected, error }: { pulse: Pulse | undefined; connected: boolean; error: api.ApiError | undefined }) {
  if (error) return <Badge tone="bad">Not connected</Badge>
  if (!connected) return <Badge>Connecting</Badge>
  if (!pulse) return <Badge tone="accent">Live</Badge>
  const sampled = pulse.left_out > 0
  const oneIn = Math.max(2, Math.round(pulse.seen / Math.max(1, pulse.sent)))
  return (
    <span class="tail-told num" title={sampled ? 'More than a hundred a second: some are left out, evenly' : undefined}>
      <Badge tone={sampled ? 'warn' : 'accent'}>{sampled ? 'Sampled' : 'Live'}</Badge>
      {sampled ? `one in ${count(oneIn)} shown` : `${count(pulse.seen)} a second, all shown`}
      {sampled && <span class="from-640">{`${count(pulse.sent)} of ${count(pulse.seen)} a second`}</span>}
    </span>
  )
}

function Waiting({ n, paused, hidden, onResume }: { n: number; paused: boolean; hidden: Hidden | undefined; onResume: () => void }) {
  if (!n && !paused && hidden) return <small class="from-640 text-warn num">hidden {clock(hidden.from)} to {clock(hidden.to)}: not followed</small>
  if (!n && !paused) return <small class="from-640">the last {kept} are kept</small>
  return (
    <Button small onClick={onResume}>
      <Icon name="play" /> {n ? `${count(n)} new` : 'Go on'}
    </Button>
  )
}

// A node serves only a few viewers, so a hidden tab gives up its place.
interface Hidden {
  from: number
  to: number
}

// useEvents follows the stream, and shows new decisions four times a second, unless the stream is paused, or the user
// has scrolled down or has the focus on a row.
function useEvents(filter: EventFilter, paused: boolean) {
  const buffer = useRef(new Buffer()).current
  const [, again] = useState(0)
  const [pulse, setPulse] = useState<Pulse>()
  const [error, setError] = useState<api.ApiError>()
  const [connected, setConnected] = useState(false)
  const [hidden, setHidden] = useState<Hidden>()
  const still = useRef(paused)
  still.current = paused

  useEffect(() => {
    const timer = setInterval(() => {
      const before = buffer.waits
      if (still.current || scrollY > 160 || document.activeElement?.closest('tbody')) {
        if (before) again((n) => n + 1) // redraws the number of waiting decisions
      } else if (buffer.show()) again((n) => n + 1)
    }, 250)
    return () => clearInterval(timer)
  }, [])

  useEffect(() => {
    let end = new AbortController()
    let timer = 0
    let since = 0 // when the tab was hidden
    const follow = () => {
      const { signal } = (end = new AbortController())
      api.events(filter, { open: () => (setConnected(true), setError(undefined)), decision: (d) => buffer.add(d), pulse: setPulse }, signal).catch((e) => {
        if (signal.aborted) return
        setConnected(false)
        setError(asError(e))
        timer = window.setTimeout(follow, 3000)
      })
    }
    const leave = () => {
      end.abort()
      clearTimeout(timer)
      setConnected(false)
      setPulse(undefined)
    }
    const turn = () => {
      if (document.hidden) {
        since ||= nodeTime()
        leave()
      } else if (since) {
        setHidden({ from: since, to: nodeTime() })
        toast({ text: `The stream was closed while this tab was hidden: ${duration(nodeTime() - since)} aren't shown.` })
        since = 0
        follow()
      }
    }
    buffer.clear()
    setHidden(undefined)
    if (document.hidden) turn()
    else follow()
    document.addEventListener('visibilitychange', turn)
    return () => {
      document.removeEventListener('visibilitychange', turn)
      leave()
    }
  }, [filter.outcome, filter.rule, filter.client, filter.edge])

  return { buffer, pulse, error, connected, hidden }
}

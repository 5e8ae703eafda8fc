import { useState } from 'preact/hooks'
import * as api from '../../api'
import { nodeTime } from '../../clock'
import { Actions, type Action } from '../../client/actions'
import { kindName } from '../../client/clients'
import { Coverage } from '../../client/coverage'
import { Forgotten } from '../../client/forgotten'
import { maskEntry, nameOf, widerEntry } from '../../client/known'
import { CounterRow } from '../../client/counter'
import { explained, limitsOf, type LimitOf } from '../../client/limits'
import { count, percent, plural } from '../../format'
import { useLoad, usePoll } from '../../load'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Chart } from '../../parts/chart'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Loading } from '../../parts/loading'
import { Meter } from '../../parts/meter'
import { Num } from '../../parts/num'
import { Page } from '../../parts/page'
import { Spark } from '../../parts/spark'
import { Table, type Column } from '../../parts/table'
import { Time } from '../../parts/time'
import { Trouble } from '../../parts/trouble'
import { navigate, to, useQuery } from '../../router'
import { useMay } from '../../session'
import type { Check, ClientInfo } from '../../wire'
import { complete } from '../../client/hour'

type RuleHour = ClientInfo['rules'][number]

// Client is the page of one client: its last hour by rule, its counters, and the actions that were taken on it.
export function Client({ fingerprint, as }: { fingerprint: string; as: string }) {
  const [rule] = useQuery('rule', '')
  const inRule = (rule: string) => to('keys', fingerprint, { as, rule })
  const info = usePoll((signal) => api.client(nameOf(fingerprint), signal), 10_000, [fingerprint])
  const [action, setAction] = useState<Action | null>(null)
  const may = useMay('rules')
  const operate = useMay('operate')

  const c = info.data
  const rows = c ? [...c.rules].sort((a, b) => b.refused - a.refused || b.requests - a.requests) : []
  const chosen = rows.find((r) => r.rule === rule) ?? rows[0]
  const focus = chosen?.rule ?? rule
  const now = useLoad((signal) => (c ? explained(checkOf(fingerprint), focus, { signal }) : Promise.resolve(undefined)), [fingerprint, focus, Boolean(c)])
  const check = now.data?.check
  const counters = usePoll((signal) => (check ? api.counters(check, { signal }) : Promise.resolve(undefined)), 2000, [check && JSON.stringify(check)])

  if (info.error && !c) {
    return (
      <Page title={as || fingerprint}>
        <Card>
          <Forgotten error={info.error} as={as || fingerprint} retry={info.reload} onOpen={(c) => navigate(to('keys', c.fingerprint, { as: c.client }), { replace: true })} />
        </Card>
      </Page>
    )
  }
  if (!c) {
    return (
      <Page title={as || fingerprint}>
        <Card>
          <Loading rows={8} />
        </Card>
      </Page>
    )
  }

  const x = now.data?.x
  const entry = x?.pattern ?? ''
  // One override may have several limits.
  const overrides = c.overrides
    .filter((o, i, all) => all.findIndex((p) => p.rule === o.rule) === i)
    .map((o) => ({ ...o, limit: c.overrides.filter((p) => p.rule === o.rule).map((p) => p.limit).join(', ') }))
  const user = c.kind === 'user' ? 'The lists have keys and addresses, and this client is a user.' : ''
  const held = (on: boolean) => may || user || (on ? widerEntry(entry) : '')
  // Blocking is always possible, and so is removing an entry of the emergency list, because neither changes the rules.
  const blocking = c.blocked && !x?.emergency ? held(true) : operate || user || (c.blocked ? widerEntry(entry) : '')
  const reload = () => {
    info.reload()
    now.reload()
    counters.reload()
  }
  // During a cooldown, no counters are checked. The only counter in the answer says which rule started the cooldown,
  // and how long it lasts.
  const out = counters.data?.reason === 'cooldown' ? counters.data.counters.find((n) => !n.shadow) : undefined
  const own = out ? [] : (counters.data?.counters ?? []).filter((n) => !n.shared_address)

  return (
    <Page
      title={c.client || fingerprint}
      lead={
        <>
          <span class="mono">{c.fingerprint}</span>, {kindName(c.kind)}
        </>
      }
      actions={
        <>
          <a class="button" href={to('why', '', { client: c.fingerprint, as: c.client, rule: focus })}>
            Why
          </a>
          {c.kind === 'api_key' && (
            <Button why={may} onClick={() => setAction({ what: 'override', rule: focus })}>
              Override
            </Button>
          )}
          <Button why={operate} onClick={() => setAction({ what: 'reset' })}>
            Reset the counters
          </Button>
          <Button kind={c.blocked ? 'plain' : 'danger'} why={blocking} onClick={() => setAction({ what: 'list', list: 'denylist', remove: c.blocked })}>
            {c.blocked ? 'Unblock' : 'Block'}
          </Button>
          <Button why={held(c.allowed && !c.blocked)} onClick={() => setAction({ what: 'list', list: 'allowlist', remove: c.allowed })}>
            {c.allowed ? 'Stop allowing' : 'Allow'}
          </Button>
        </>
      }
    >
      {may && <p class="muted">{may}</p>}
      {c.blocked && (
        <Trouble tone="bad" title="Blocked">
          <p>The {x?.emergency ? 'emergency' : 'deny'} list {entry ? <>has {<code>{maskEntry(entry)}</code>}</> : 'covers it'}: its requests get 403, whatever their limits.</p>
        </Trouble>
      )}
      {out && (
        <Trouble tone="bad" title="Kept out">
          <p>
            It kept coming while <b class="mono">{out.rule}</b> refused it, and is refused for a while, whatever its limits have left. That ends{' '}
            <Time at={new Date(nodeTime(counters.at) + out.retry_after_ms).toISOString()} />.
          </p>
          <p>
            <Button small why={operate} onClick={() => setAction({ what: 'lift', rule: out.rule })}>
              Lift the cooldown
            </Button>
          </p>
        </Trouble>
      )}
      {c.allowed && !c.blocked && (
        <Trouble title="Allowed without limits">
          <p>The allow list {entry ? <>has {<code>{maskEntry(entry)}</code>}</> : 'covers it'}: its requests pass without any limit.</p>
        </Trouble>
      )}
      {info.error && (
        <Trouble title="This is what was known before">
          <p>{info.error.message}</p>
        </Trouble>
      )}

      <Card title={chosen ? <>The last hour in <span class="mono">{chosen.rule}</span></> : 'The last hour'} aside={<Coverage of={c} share={c.coverage} />}>
        {chosen ? (
          <HourChart rule={chosen} info={c} />
        ) : (
          <Empty title="No rule that counts by it has seen it in the last hour">
            <p>Each node remembers the thousand busiest keys of each rule. This client has asked for nothing, or for less than those.</p>
          </Empty>
        )}
      </Card>

      <div class="client-grid">
        <Card title="By rule" flush>
          <Table label="The last hour by rule" rows={rows} rowKey={(r) => r.rule} columns={columns(chosen?.rule, inRule)} href={(r) => inRule(r.rule)} empty={<Empty title="Nothing to show" />} />
        </Card>
        <div class="stack">
          <Card title="Counters now" aside={now.data?.assumed && <code>{`${now.data.assumed.method} ${now.data.assumed.path}`}</code>}>
            {now.error || counters.error ? (
              <Failed error={(now.error ?? counters.error)!} retry={reload} />
            ) : !counters.data ? (
              <Loading rows={3} />
            ) : own.length ? (
              <div class="counters counter-list">
                {own.map((n) => (
                  <CounterRow key={n.policy} counter={n} at={counters.at} named />
                ))}
              </div>
            ) : (
              <p class="muted">{entry ? 'A list decides, so no counter is asked.' : out ? 'No counter is asked while it is kept out.' : 'No rule counts by this client alone. Rules for an endpoint are seen in Why, with its method and path.'}</p>
            )}
          </Card>
          <Card title="Overrides" flush aside={plural(overrides.length, 'override')}>
            {c.overrides.length ? (
              <ul class="override-list">
                {overrides.map((o) => (
                  <li key={o.rule}>
                    <span>
                      <a class="mono" href={to('rules', o.rule)}>
                        {o.rule}
                      </a>{' '}
                      <b class="num">{o.limit}</b>
                      {o.capacity ? <small> burst {count(o.capacity)}</small> : null}
                    </span>
                    <span class="muted">{o.expires ? <>ends <Time at={o.expires} /></> : 'no end'}</span>
                    <Button small why={may} onClick={() => setAction({ what: 'unoverride', rule: o.rule })}>
                      Remove
                    </Button>
                  </li>
                ))}
              </ul>
            ) : (
              <p class="pad muted">{c.kind === 'api_key' ? 'It has the limits of its tier and of the rules.' : 'Overrides are for keys.'}</p>
            )}
          </Card>
        </div>
      </div>

      {action && (
        <Actions
          action={action}
          target={{ fingerprint: c.fingerprint, mask: c.client, kind: c.kind }}
          check={check ?? checkOf(fingerprint)}
          counters={own}
          limits={overridable(c, x ? limitsOf(x, own) : [])}
          onClose={() => setAction(null)}
          onDone={reload}
        />
      )}
    </Page>
  )
}

// overridable returns the rules that apply, and those that have an override for the client.
function overridable(c: ClientInfo, applied: LimitOf[]): LimitOf[] {
  const others = c.overrides.filter((o) => !applied.some((l) => l.rule === o.rule))
  return [...applied, ...others.map((o, i) => ({ rule: o.rule, policy: `${o.rule} ${i}`, limit: o.limit, at: 0, of: 1 }))]
}

function checkOf(fingerprint: string): Check {
  const name = nameOf(fingerprint)
  return 'user' in name ? { attributes: { user: name.user } } : name
}

function HourChart({ rule, info }: { rule: RuleHour; info: ClientInfo }) {
  const past = complete(rule.history, info.at, info.slot_seconds)
  return (
    <Chart
      label={`Requests and refusals of the last hour in ${rule.rule}, for each ${info.slot_seconds} seconds`}
      end={past.end}
      step={info.slot_seconds}
      height={180}
      lines={[
        { label: `Requests per ${info.slot_seconds} s`, values: past.requests, token: '--accent', fill: true },
        { label: 'Refused', values: past.refused, token: '--bad', fill: true },
      ]}
    />
  )
}

const columns = (chosen: string | undefined, href: (rule: string) => string): Column<RuleHour>[] => [
  {
    id: 'rule',
    head: 'Rule',
    cell: (r) => (
      <a class={`mono ${r.rule === chosen ? 'chosen' : ''}`} href={href(r.rule)} aria-current={r.rule === chosen ? 'true' : undefined}>
        {r.rule}
      </a>
    ),
  },
  { id: 'requests', head: 'Requests', number: true, width: '5.5rem', sort: (r) => r.requests, cell: (r) => <Num value={r.requests} /> },
  { id: 'refused', head: 'Refused', number: true, width: '5.5rem', sort: (r) => r.refused, cell: (r) => <Num value={r.refused} tone={r.refused ? 'bad' : undefined} /> },
  {
    id: 'used',
    head: 'Used',
    title: 'Of the limit, now',
    width: '7rem',
    wide: 640,
    cell: (r) => (
      <span class="used">
        <Meter share={r.used} label={`${r.rule}: used`} />
        <span class="num">{percent(r.used)}</span>
      </span>
    ),
  },
  { id: 'hour', head: 'Last hour', width: '7rem', wide: 1280, cell: (r) => <Spark values={r.history.requests} over={r.history.refused} label={`${plural(r.requests, 'request')}, ${count(r.refused)} refused`} /> },
]

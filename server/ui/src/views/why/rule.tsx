import * as api from '../../api'
import { ClientName, kindName } from '../../client/clients'
import { Coverage } from '../../client/coverage'
import { minutes } from '../../client/hour'
import { Changed } from '../../client/changed'
import { count, percent, plural } from '../../format'
import { useLoad, usePoll } from '../../load'
import { Card } from '../../parts/card'
import { Code } from '../../parts/code'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Loading } from '../../parts/loading'
import { Meter } from '../../parts/meter'
import { Num } from '../../parts/num'
import { Spark } from '../../parts/spark'
import { Table, type Column } from '../../parts/table'
import { Time } from '../../parts/time'
import { to } from '../../router'
import type { RuleUsage } from '../../wire'

type Row = RuleUsage['clients'][number]

// Only a single key, user or IP address can be asked about, not a combination of attributes that the rule counts by.
const whyOf = (rule: string, c: Row) => (['api_key', 'user', 'ip'].includes(c.kind) ? to('why', '', { rule, client: c.fingerprint, as: c.client }) : undefined)

// RuleAnswer is the answer if only the rule of a refusal is known: what the rule says, and which clients it refuses.
export function RuleAnswer({ id }: { id: string }) {
  const rule = useLoad((signal) => api.rule(id, signal), [id])
  const usage = usePoll((signal) => api.ruleUsage(id, { by: 'refused', k: 100 }, signal), 10_000, [id])

  if (usage.error?.status === 404 && !usage.data) {
    return (
      <Empty title={`There is no rule ${id}`}>
        <p>
          It may have been removed or renamed since it refused: <a href={to('history')}>History</a> says when, and <a href={to('rules')}>Rules</a> has those in force.
        </p>
      </Empty>
    )
  }
  const columns: Column<Row>[] = [
    {
      id: 'client',
      head: 'Client',
      cell: (c) => <ClientName mask={c.client} fingerprint={c.fingerprint} href={whyOf(id, c)} />,
    },
    { id: 'kind', head: 'Counted by', width: '8rem', wide: 960, cell: (c) => kindName(c.kind) },
    {
      id: 'used',
      head: 'Used now',
      width: '9rem',
      wide: 640,
      sort: (c) => c.used,
      cell: (c) => (
        <span class="used">
          <Meter share={c.used} label="Used of its limit" />
          <span class={`num ${c.used >= 1 ? 'text-bad' : ''}`}>{percent(c.used)}</span>
        </span>
      ),
    },
    { id: 'requests', head: 'Requests', number: true, width: '6rem', sort: (c) => c.requests, cell: (c) => <Num value={c.requests} /> },
    { id: 'refused', head: 'Refused', number: true, width: '6rem', sort: (c) => c.refused, cell: (c) => <Num value={c.refused} tone={c.refused ? 'bad' : undefined} /> },
    { id: 'hour', head: 'Last hour', width: '10rem', wide: 960, cell: (c) => <Spark values={minutes(c.history.requests)} over={minutes(c.history.refused)} label={`${plural(c.requests, 'request')}, ${count(c.refused)} refused in the last hour`} /> },
  ]
  const u = usage.data
  return (
    <>
      <Card
        title={
          <>
            Rule <span class="mono">{id}</span>
          </>
        }
        aside={<a href={to('rules', id)}>Open in Rules</a>}
      >
        <div class="stack">
          <p class="facts">
            {u ? (
              <>
                In the last hour it applied to <Num value={u.requests} /> requests of {plural(u.keys, 'key')} and refused <Num value={u.refused} tone={u.refused ? 'bad' : undefined} />, the last one <Time at={u.last_refusal} />.{' '}
                {plural(u.above_100, 'key has', 'keys have')} nothing left now.
              </>
            ) : (
              <span class="muted">Counting…</span>
            )}
          </p>
          <p class="facts">
            <Changed loaded={rule} />
          </p>
          {rule.data && <Code label={`Text of the rule ${id}`}>{rule.data.yaml}</Code>}
        </div>
      </Card>
      <Card title="Whom it refuses" flush aside={u && <Coverage of={u} share={u.coverage} />}>
        {usage.error && !u ? (
          <Failed error={usage.error} retry={usage.reload} />
        ) : !u ? (
          <Loading rows={6} />
        ) : (
          <Table
            label={`Clients of ${id} by refusals`}
            rows={u.clients.filter((c) => c.refused > 0 || c.used >= 1)}
            columns={columns}
            rowKey={(c) => c.fingerprint + c.kind}
            href={(c) => whyOf(id, c)}
            sort={{ by: 'refused', desc: true }}
            empty={
              <Empty title="It has refused nobody in the last hour">
                <p>Paste the client's key above to see how its counters stand now.</p>
              </Empty>
            }
          />
        )}
      </Card>
    </>
  )
}

import { useEffect, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { Coverage } from '../../client/coverage'
import { Actions, type Action } from '../../client/actions'
import { Forgotten } from '../../client/forgotten'
import { isPasted, maskEntry, nameOf, recognise } from '../../client/known'
import { explained, limitsOf, type Explained } from '../../client/limits'
import { plural } from '../../format'
import { useLoad, usePoll } from '../../load'
import { Card } from '../../parts/card'
import { CliLine } from '../../parts/cliline'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Loading } from '../../parts/loading'
import { Table, type Column } from '../../parts/table'
import { Trouble } from '../../parts/trouble'
import { navigate, to } from '../../router'
import type { ClientInfo, ClientName, ExplainedRule } from '../../wire'
import { AppliedRule } from './applied'
import { checkOf, queryOf, type Question, type Secrets } from './question'
import { verdict } from './verdict'
import { Verdict } from './verdict-card'

interface Answered extends Explained {
  info: ClientInfo | null
  focus: string // the rule that the question names, or else the rule that has refused the client the most
}

const nameIn = (q: Question): ClientName | null => (q.client ? nameOf(q.client) : q.ip ? { ip: q.ip } : null)

async function ask(q: Question, s: Secrets, signal: AbortSignal): Promise<Answered> {
  const name = nameIn(q)
  const info = name ? await recognise(name) : null
  const most = [...(info?.rules ?? [])].sort((a, b) => b.refused - a.refused)[0]
  const focus = q.rule || (most?.refused ? most.rule : '')
  return { ...(await explained(checkOf(q, name, s), focus, { unverified: q.unverified, signal })), info, focus }
}

export function Answer({ question: q, secrets }: { question: Question; secrets: Secrets }) {
  const about = JSON.stringify([{ ...q, as: '' }, secrets])
  const answer = useLoad((signal) => ask(q, secrets, signal), [about])
  const a = answer.data
  const counters = usePoll(
    (signal) => (a ? api.counters(a.check, { unverified: q.unverified, signal }) : Promise.resolve(undefined)),
    2000,
    [a && JSON.stringify(a.check)],
  )
  const hour = usePoll((signal) => (nameIn(q) && a ? api.client(nameIn(q)!, signal) : Promise.resolve(null)), 10_000, [about, Boolean(a)])
  const [action, setAction] = useState<Action | null>(null)
  // Use the node's mask, since anybody may have written the one in the address.
  const mask = a?.info?.client
  useEffect(() => {
    if (q.client && mask && mask !== q.as) navigate(to('why', '', queryOf({ ...q, as: mask })), { replace: true })
  }, [mask])

  if (answer.error && !a) {
    if (!q.client) return <Failed error={answer.error} retry={answer.reload} />
    return (
      <Card>
        <Forgotten error={answer.error} as={q.as || q.client} retry={answer.reload} onOpen={(c) => navigate(to('why', '', queryOf({ ...q, client: c.fingerprint, as: c.client })))} />
      </Card>
    )
  }
  const told = counters.data
  if (!a || (!told && !counters.error)) {
    return (
      <Card>
        <Loading rows={6} />
      </Card>
    )
  }
  if (!told) return <Failed error={counters.error!} retry={counters.reload} />

  const info = hour.data ?? a.info
  const { x } = a
  const all = told.counters
  const v = verdict(told)
  const applied = x.rules.filter((r) => r.applies)
  // The binding rule comes first, and rules whose counters weren't checked come last.
  const order = (r: ExplainedRule) => {
    const i = all.findIndex((c) => c.rule === r.rule)
    return i < 0 ? all.length : i
  }
  applied.sort((l, r) => order(l) - order(r))
  const others = x.rules.filter((r) => !r.applies)
  const reload = () => {
    answer.reload()
    counters.reload()
    hour.reload()
  }
  const target = info && { fingerprint: info.fingerprint, mask: info.client, kind: info.kind }
  const who = target ? cli.who(target.fingerprint, isPasted(target.fingerprint)) : ''
  const shownCheck = q.client || !target ? a.check : { ...a.check, ip: q.ip }

  return (
    <>
      {counters.error && (
        <Trouble title="The counters are as they stood before">
          <p>{counters.error.message}</p>
        </Trouble>
      )}
      <Verdict verdict={v} x={x} info={info} at={counters.at} assumed={a.assumed} focus={a.focus} question={q} check={a.check} onAction={setAction} />

      <Card
        title={applied.length ? `${plural(applied.length, 'rule applies', 'rules apply')}` : 'No rule applies'}
        flush
        class="applied"
        aside={info && <Coverage of={info} />}
      >
        {applied.length ? (
          <ul>
            {applied.map((r) => (
              <AppliedRule
                key={r.rule}
                rule={r}
                counters={v.kind === 'cooldown' ? [] : all.filter((c) => c.rule === r.rule)}
                binding={v.binding?.rule === r.rule}
                refusing={(v.kind === 'limited' || v.kind === 'cooldown') && v.binding?.rule === r.rule}
                asked={q.rule === r.rule}
                hour={info?.rules.find((h) => h.rule === r.rule)}
                at={counters.at}
                asOf={answer.at}
                override={info?.overrides.find((o) => o.rule === r.rule)}
                kind={info?.kind}
                onAction={setAction}
              />
            ))}
          </ul>
        ) : (
          <Empty title={x.pattern ? 'A list decided before any rule' : 'This request has no limit'}>
            {x.pattern ? (
              <p>
                The entry <code>{maskEntry(x.pattern)}</code> of the {x.emergency ? 'emergency' : x.reason === 'denied' ? 'deny' : 'allow'} list covers it, so no counter was asked.
              </p>
            ) : (
              <p>The others and why they don't apply are below. Rules for an endpoint need its method and path.</p>
            )}
          </Empty>
        )}
      </Card>

      {others.length > 0 && <Others rules={others} asked={q.rule} />}

      <Card title="The same in a terminal">
        <CliLine>{cli.counters('show', q.client ? who : '', shownCheck, q.unverified)}</CliLine>
      </Card>

      {action && (
        <Actions
          action={action}
          target={target}
          check={a.check}
          unverified={q.unverified}
          counters={all}
          limits={limitsOf(x, all)}
          onClose={() => setAction(null)}
          onDone={reload}
        />
      )}
    </>
  )
}

const otherColumns: Column<ExplainedRule>[] = [
  {
    id: 'rule',
    head: 'Rule',
    width: '12rem',
    sort: (r) => r.rule,
    cell: (r) => (
      <a class="mono" href={to('rules', r.rule)}>
        {r.rule}
      </a>
    ),
  },
  { id: 'why', head: "Why it doesn't apply", cell: (r) => <span title={r.why}>{r.why}</span> },
]

function Others({ rules, asked }: { rules: ExplainedRule[]; asked: string }) {
  const named = rules.find((r) => r.rule === asked)
  return (
    <details class="card fold" open={Boolean(named)}>
      <summary>
        <h2>{plural(rules.length, "rule doesn't apply", "rules don't apply")}</h2>
        {named && (
          <span>
            <span class="mono">{named.rule}</span> among them: {named.why}
          </span>
        )}
      </summary>
      <Table label="Rules that don't apply" rows={rules} columns={otherColumns} rowKey={(r) => r.rule} />
    </details>
  )
}

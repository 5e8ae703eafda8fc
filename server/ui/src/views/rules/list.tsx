import { useEffect, useMemo, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { Coverage } from '../../client/coverage'
import { plural, short } from '../../format'
import { usePoll } from '../../load'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { CliLine } from '../../parts/cliline'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Field } from '../../parts/field'
import { Loading } from '../../parts/loading'
import { Num } from '../../parts/num'
import { Page } from '../../parts/page'
import { Table, type Column, type Sort } from '../../parts/table'
import { Time } from '../../parts/time'
import { Trouble } from '../../parts/trouble'
import { to, useQuery } from '../../router'
import { useMay, useSession } from '../../session'
import type { Usage } from '../../wire'
import { useRulesDoc, type RuleRow } from './rules-doc'
import { Tiers } from './tiers'

type Row = RuleRow & { usage?: Usage; gone?: boolean }

const above = (n: number | undefined, tone: 'warn' | 'bad' | undefined) => <Num value={n} tone={n ? tone : undefined} />

const columns: Column<Row>[] = [
  {
    id: 'rule',
    head: 'Rule',
    width: 'var(--rule-column)',
    sort: (r) => r.id,
    cell: (r) => (
      <span class="rule-name">
        {r.gone ? <span class="mono muted">{r.id}</span> : <a class="mono clip" href={to('rules', r.id)}>{r.id}</a>}
        {r.gone && <Badge title="It isn't in the rules in force, and was in the last hour.">removed</Badge>}
        {r.shadow && <Badge tone="accent">shadow</Badge>}
        {r.candidate && <Badge tone="accent" title={`Would refuse at ${r.candidate}`}>candidate</Badge>}
      </span>
    ),
  },
  { id: 'limit', head: 'Limit', width: 'var(--limit-column)', cell: (r) => <span class="mono">{r.limit}</span> },
  { id: 'applies', head: 'Applies to', wide: 960, cell: (r) => <span title={`${r.applies}, by ${r.by}`}>{r.applies}{!r.gone && <span class="muted"> by {r.by}</span>}</span> },
  { id: 'hit', head: 'Last hit', number: true, width: '6rem', wide: 640, sort: (r) => (r.usage?.last_hit ? Date.parse(r.usage.last_hit) : null), cell: (r) => r.usage && <Time at={r.usage.last_hit} none="not seen" /> },
  { id: 'requests', head: 'Requests', title: 'In the last hour', number: true, width: '5.5rem', sort: (r) => r.usage?.requests ?? null, cell: (r) => <Num value={r.usage?.requests} as={short} /> },
  { id: 'refused', head: 'Refused', title: 'In the last hour', number: true, width: '5.5rem', wide: 640, sort: (r) => r.usage?.refused ?? null, cell: (r) => <Num value={r.usage?.refused} as={short} tone={r.usage?.refused ? 'bad' : undefined} /> },
  { id: 'above50', head: '≥ 50%', title: 'Keys that have used at least half of it', number: true, width: '4.25rem', wide: 960, sort: (r) => r.usage?.above_50 ?? null, cell: (r) => above(r.usage?.above_50, undefined) },
  { id: 'above80', head: '≥ 80%', title: 'Keys that have used at least four fifths of it', number: true, width: '4.25rem', wide: 960, sort: (r) => r.usage?.above_80 ?? null, cell: (r) => above(r.usage?.above_80, 'warn') },
  { id: 'above100', head: '100%', title: 'Keys that have used all of it', number: true, width: '4.25rem', wide: 640, sort: (r) => r.usage?.above_100 ?? null, cell: (r) => above(r.usage?.above_100, 'bad') },
]

export function List() {
  const session = useSession()!
  const may = useMay('rules')
  const { doc, error, reload } = useRulesDoc()
  const usage = usePoll((signal) => api.rulesUsage(signal), 10_000, [])
  const [kept, keep] = useQuery<string>('q', '')
  const [typed, type] = useState(kept)
  // The address is updated a moment after the last keystroke, and not if the user has gone to another view.
  useEffect(() => {
    if (typed === kept) return
    const timer = setTimeout(() => keep(typed), 400)
    return () => clearTimeout(timer)
  }, [typed])
  const [order, setOrder] = useQuery<string>('sort', 'refused-')
  const sort: Sort = { by: order.replace(/-$/, ''), desc: order.endsWith('-') }

  const all = useMemo<Row[]>(() => {
    const used = new Map(usage.data?.rules.map((u) => [u.rule, u]))
    const rows: Row[] = (doc?.rules ?? []).map((r) => ({ ...r, usage: used.get(r.id) }))
    const there = new Set(rows.map((r) => r.id))
    for (const u of usage.data?.rules ?? []) {
      if (doc && !there.has(u.rule)) rows.push({ id: u.rule, limit: '', applies: '', by: '', candidate: '', shadow: false, text: u.rule, usage: u, gone: true })
    }
    return rows
  }, [doc, usage.data])
  const rows = useMemo(() => {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean)
    return words.length ? all.filter((r) => words.every((w) => r.text.includes(w))) : all
  }, [all, typed])

  const actions = (
    <>
      <a class="button" href={to('rules', '', { view: 'yaml' })}>
        Whole document
      </a>
      {may ? (
        <Button kind="primary" why={may}>
          New rule
        </Button>
      ) : (
        <a class="button primary" href={to('rules', '', { view: 'new' })}>
          New rule
        </a>
      )}
    </>
  )
  return (
    <Page title="Rules" lead={doc && <>Version {doc.version}, {plural(doc.rules.length, 'rule')}. Every rule that matches a request applies, and the most restrictive one wins.</>} actions={actions}>
      {session.rules_in_file && (
        <Trouble title={`The rules come from ${session.rules_in_file}`}>
          <p>Saving the file applies it on this node. Here they can be looked at and tried, and not changed.</p>
        </Trouble>
      )}
      {error && doc && (
        <Trouble tone="bad" title="These are the rules as they were last heard">
          <p>{error.message}</p>
        </Trouble>
      )}
      {!doc && error ? (
        <Failed error={error} retry={reload} />
      ) : (
        <>
          <Tiers tiers={doc?.tiers} may={may} onDone={reload} />
          <Card
            flush
            title="Rules"
            aside={
              <>
                {usage.error ? <span class="text-warn">Usage: {usage.error.message}</span> : usage.data && <Coverage of={usage.data} />}
                <Field
                  label="Search rules"
                  hideLabel
                  search
                  type="search"
                  placeholder="Search rules"
                  value={typed}
                  onInput={type}
                />
              </>
            }
          >
            {!doc ? (
              <Loading rows={12} />
            ) : (
              <Table
                label="Rules"
                rows={rows}
                columns={columns}
                rowKey={(r) => r.id}
                href={(r) => to('rules', r.id)}
                sort={sort}
                onSort={(s) => setOrder(`${s.by}${s.desc ? '-' : ''}`)}
                empty={
                  all.length ? (
                    <Empty title="No rule matches">
                      <p>Search looks at ids, limits, endpoints and what a rule counts by.</p>
                    </Empty>
                  ) : (
                    <Empty title="There are no rules yet">
                      <p>Without one, nothing is limited. Begin with a rule that counts by address.</p>
                    </Empty>
                  )
                }
              />
            )}
          </Card>
          <CliLine>{cli.showRules()}</CliLine>
        </>
      )}
    </Page>
  )
}

import { useEffect, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { Coverage } from '../../client/coverage'
import { countOf, withCount } from '../../client/limits'
import { count, percent, plural } from '../../format'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { CliLine } from '../../parts/cliline'
import { Empty } from '../../parts/empty'
import { Field } from '../../parts/field'
import { Num } from '../../parts/num'
import { Table, type Column } from '../../parts/table'
import { Review, type Change } from '../../review/review'
import { to } from '../../router'
import { useMay } from '../../session'
import type { RuleText, RuleUsage, WhatIf as Answer } from '../../wire'
import { useCheck } from './drafts'
import { candidateOf, change as changed, enforceCandidate } from './form-model'

type Client = Answer['clients'][number]

const columns: Column<Client>[] = [
  { id: 'client', head: 'Client', cell: (c) => <a class="mono" href={to('keys', c.fingerprint, { as: c.client })}>{c.client}</a> },
  { id: 'requests', head: 'Requests', number: true, width: '7rem', wide: 640, sort: (c) => c.requests, cell: (c) => <Num value={c.requests} /> },
  { id: 'would', head: 'Would be refused', number: true, width: '9rem', sort: (c) => c.would_refuse, cell: (c) => <Num value={c.would_refuse} tone={c.would_refuse ? 'bad' : undefined} /> },
  { id: 'was', head: 'Was refused', number: true, width: '7rem', wide: 640, sort: (c) => c.was_refused, cell: (c) => <Num value={c.was_refused} /> },
]

// WhatIf compares the last hour with another limit. The user can then run that limit as a candidate beside the enforced
// one, and finally enforce it.
export function WhatIf({ rule, usage, onDone }: { rule: RuleText; usage: RuleUsage | undefined; onDone: () => void }) {
  const may = useMay('rules')
  const candidate = candidateOf(rule.yaml)
  const first = candidate || rule.numbers[0]?.limit || ''
  const [typed, type] = useState<string>()
  const [review, setReview] = useState<Change>()
  const [shown, show] = useState<Answer>()
  const limit = (typed ?? first).trim()
  const checked = useCheck(/^\d+\/\S/.test(limit) ? limit : undefined, (limit, signal) => api.whatIf({ rule: rule.rule, limit }, signal))
  useEffect(() => {
    if (checked?.value) show(checked.value)
  }, [checked])
  const answer = checked?.value ?? shown
  const error = checked?.error && checked.text === limit ? (checked.error as Error).message : limit && !/^\d+\/\S/.test(limit) ? 'A count and a time, such as 50/minute.' : ''
  const refused = answer?.clients.filter((c) => c.would_refuse > 0).slice(0, 20) ?? []
  const now = countOf(limit)
  const most = Math.max(2 * (countOf(rule.numbers[0]?.limit ?? '') ?? 0), now ?? 0, 10)

  const ask = (title: string, verb: string, text: string, lead: string) =>
    setReview({
      title,
      verb,
      lead,
      send: (o) => api.putRule(rule.rule, text, o),
      cli: (o) => cli.putRule(rule.rule, text, o),
      since: rule.version,
      covers: async () => (await api.rule(rule.rule)).yaml !== rule.yaml,
    })
  return (
    <Card title="What if" class="what-if" aside={answer && <Coverage of={answer} share={answer.coverage} />}>
      {candidate && (
        <div class="candidate">
          <p>
            The candidate <strong class="mono">{candidate}</strong> runs beside the limit in force and refuses nobody. It would have refused{' '}
            <strong class="num">{usage ? count(usage.would_refuse) : '–'}</strong> {usage?.would_refuse === 1 ? 'request' : 'requests'} in the last hour.
          </p>
          <div class="actions">
            <Button kind="primary" why={may} onClick={() => ask(`Make ${candidate} the limit`, 'Apply', enforceCandidate(rule.yaml), `From then on it refuses, in the place of ${rule.limits.join(', ')}, and the candidate ends.`)}>
              Make it the limit
            </Button>
            <Button why={may} onClick={() => ask('Stop the candidate', 'Apply', changed(rule.yaml, 'candidate', ''), 'The limit in force stays as it is.')}>
              Stop the candidate
            </Button>
          </div>
        </div>
      )}
      <div class="what-if-ask">
        <Field label="Limit to try" mono value={typed ?? first} onInput={type} error={error} placeholder="50/minute" width="m" />
        <label class="slide">
          <span class="hidden">Count of the limit to try</span>
          <input type="range" min={1} max={most} value={now ?? 1} disabled={now === undefined} onInput={(e) => type(withCount(limit, Number(e.currentTarget.value)))} />
        </label>
        <Button
          why={may || error || (!limit ? 'Type a limit first.' : limit === candidate ? 'This candidate runs already.' : '')}
          onClick={() => ask('Run as candidate', 'Apply', changed(rule.yaml, 'candidate', limit), 'It counts beside the limit in force, reports what it would refuse, and refuses nobody.')}
        >
          Run as candidate
        </Button>
      </div>
      {answer && answer.requests === 0 ? (
        <Empty title="Nothing to hold it against">
          <p>No request met this rule in the last hour.</p>
        </Empty>
      ) : (
        <>
          <p class="what-if-says" role="status" aria-busy={!answer && !!limit && !error}>
            {answer
              ? `At ${answer.limit}, ${count(answer.keys_refused)} of ${plural(answer.keys, 'key')} would have been refused in the last hour: ${count(answer.would_refuse)} of ${plural(answer.requests, 'request')} (${percent(answer.requests ? answer.would_refuse / answer.requests : 0)}). At the limit in force ${count(answer.was_refused)} were.`
              : 'Type a limit: the last hour’s requests are held against it.'}
          </p>
          {answer?.notes?.map((n) => (
            <p key={n} class="muted">
              {`${n[0]!.toUpperCase()}${n.slice(1)}.`}
            </p>
          ))}
          {refused.length > 0 && <Table label="Clients that would be refused" rows={refused} columns={columns} rowKey={(c) => c.fingerprint} href={(c) => to('keys', c.fingerprint, { as: c.client })} />}
        </>
      )}
      {limit && !error && <CliLine>{cli.whatIf(rule.rule, limit)}</CliLine>}
      {review && <Review change={review} onClose={() => setReview(undefined)} onDone={() => (type(undefined), onDone())} />}
    </Card>
  )
}

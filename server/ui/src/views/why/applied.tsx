import * as api from '../../api'
import type { Action } from '../../client/actions'
import { CounterRow } from '../../client/counter'
import { minutes } from '../../client/hour'
import { Changed } from '../../client/changed'
import { count, plural } from '../../format'
import { useLoad } from '../../load'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Num } from '../../parts/num'
import { Spark } from '../../parts/spark'
import { Time } from '../../parts/time'
import { to } from '../../router'
import { useMay } from '../../session'
import type { ClientInfo, Counter, ExplainedRule, OverrideOf } from '../../wire'

export interface AppliedProps {
  rule: ExplainedRule
  counters: Counter[]
  binding: boolean
  refusing: boolean
  asked: boolean
  hour: ClientInfo['rules'][number] | undefined
  at: number
  asOf: number // when the rules were last loaded
  override: OverrideOf | undefined
  kind: string | undefined
  onAction: (a: Action) => void
}

// AppliedRule shows a rule that counted the request: its counters, its last hour, who changed it, and the possible
// actions.
export function AppliedRule({ rule: r, counters, binding, refusing, asked, hour, at, asOf, override, kind, onAction }: AppliedProps) {
  const text = useLoad((signal) => api.rule(r.rule, signal), [r.rule, asOf])
  const may = useMay('rules')
  const shadow = r.limits?.every((l) => l.shadow)
  const noOverride = may || (kind === undefined ? 'An override is for a key: paste it first.' : kind !== 'api_key' ? 'An override is for a key, and this client has none.' : '')
  return (
    <li class={`applied-rule ${refusing ? 'refusing' : ''}`} aria-label={`Rule ${r.rule}`}>
      <div class="applied-head">
        <h3>
          <a class="mono" href={to('rules', r.rule)}>
            {r.rule}
          </a>
        </h3>
        {refusing ? <Badge tone="bad">Refuses</Badge> : shadow ? <Badge title="It counts, and refuses nobody">Shadow</Badge> : binding ? <Badge tone="accent">Binds</Badge> : counters.some((c) => c.refuses) ? <Badge tone="bad">Refuses, too</Badge> : null}
        {asked && <Badge>Asked about</Badge>}
        {override && (
          <Badge tone="accent" title={override.expires}>
            Override{override.expires ? <> ends <Time at={override.expires} /></> : ', no end'}
          </Badge>
        )}
        <div class="actions">
          <Button small why={noOverride} onClick={() => onAction({ what: 'override', rule: r.rule })}>
            Override
          </Button>
          <Button
            small
            why={may || (r.source === 'override' ? 'Its number is an override of this key: change that.' : r.limits?.length ? '' : 'It has no limit for this request.')}
            onClick={() => onAction({ what: 'raise', rule: r.rule })}
          >
            Raise the limit
          </Button>
        </div>
      </div>
      <div class="counters">
        {counters.map((c) => (
          <CounterRow key={c.policy} counter={c} at={at} />
        ))}
        {!counters.length && <p class="muted">Its counter wasn't asked.</p>}
      </div>
      <div class="applied-foot">
        <p>
          Applies because {r.why}
          {r.by && r.by.length > 0 ? `; counted by ${r.by.join(' and ')}` : '; one counter for all'}
          {r.numbers_from && `; numbers of ${r.numbers_from.replace(/^the key's/, 'its')}`}
          {r.cost !== undefined && r.cost !== 1 && `; costs ${count(r.cost)}`}.
        </p>
        <p>
          <Changed loaded={text} />
        </p>
      </div>
      {hour && (
        <div class="applied-hour">
          <Spark values={minutes(hour.history.requests)} over={minutes(hour.history.refused)} label={`${plural(hour.requests, 'request')} in the last hour, ${count(hour.refused)} refused`} />
          <small>
            Last hour: <Num value={hour.requests} /> requests, <Num value={hour.refused} tone={hour.refused ? 'bad' : undefined} /> refused
          </small>
        </div>
      )}
    </li>
  )
}

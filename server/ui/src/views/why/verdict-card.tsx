import type { Action } from '../../client/actions'
import { kindName } from '../../client/clients'
import { maskEntry, widerEntry } from '../../client/known'
import { countdown, left, leftOf } from '../../client/limits'
import { plural } from '../../format'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { useSecond } from '../../parts/time'
import { to } from '../../router'
import { useMay } from '../../session'
import type { Check, ClientInfo, Explanation } from '../../wire'
import type { Question } from './question'
import type { Verdict as Said } from './verdict'

export interface VerdictProps {
  verdict: Said
  x: Explanation
  info: ClientInfo | null
  at: number
  assumed: { method: string; path: string } | undefined
  focus: string
  question: Question
  check: Check
  onAction: (a: Action) => void
}

// Verdict is the short answer: whether such a request is allowed now, which rule decides, and which actions are
// possible.
export function Verdict(p: VerdictProps) {
  const { verdict: v, info } = p
  const operate = useMay('operate')
  const rules = useMay('rules')
  const unfit = !info ? 'Name a client first.' : info.kind === 'user' ? 'The lists have keys and addresses, and this client is a user.' : ''
  const off = (on: boolean | undefined) => rules || unfit || (on ? widerEntry(p.x.pattern ?? '') : '')
  // Blocking is always possible, and so is removing an entry of the emergency list, because neither changes the rules.
  const blocking = info?.blocked && !p.x.emergency ? off(true) : operate || unfit || (info?.blocked ? widerEntry(p.x.pattern ?? '') : '')
  return (
    <Card class={`verdict ${v.tone}`}>
      <div class="verdict-body">
        <div class="stack">
          <Headline {...p} />
          <Notes {...p} />
          <Facts {...p} />
        </div>
        <div class="verdict-do">
          <h2>What to do</h2>
          <div class="actions">
            {v.kind === 'cooldown' && info && v.binding && (
              <Button kind="primary" why={operate} onClick={() => p.onAction({ what: 'lift', rule: v.binding!.rule })}>
                Lift the cooldown
              </Button>
            )}
            {info?.kind === 'api_key' && (
              <Button why={rules} onClick={() => p.onAction({ what: 'override', rule: (v.kind === 'limited' || v.kind === 'cooldown' ? '' : p.focus) || v.binding?.rule })}>
                Override
              </Button>
            )}
            <Button why={operate} onClick={() => p.onAction({ what: 'reset' })}>
              Reset the counters
            </Button>
            <Button kind={info?.blocked ? 'plain' : 'danger'} why={blocking} onClick={() => p.onAction({ what: 'list', list: 'denylist', remove: Boolean(info?.blocked) })}>
              {info?.blocked ? 'Unblock' : 'Block'}
            </Button>
            <Button why={off(info?.allowed && !info.blocked)} onClick={() => p.onAction({ what: 'list', list: 'allowlist', remove: Boolean(info?.allowed) })}>
              {info?.allowed ? 'Stop allowing' : 'Allow'}
            </Button>
          </div>
          {(operate || rules) && <p class="muted">{operate || rules}</p>}
          {info && (
            <p>
              <a href={to('keys', info.fingerprint, { as: info.client })}>Open the client's page</a>
            </p>
          )}
        </div>
      </div>
    </Card>
  )
}

function Sentence({ verdict: v, x, at }: VerdictProps) {
  const now = useSecond()
  const b = v.binding
  switch (v.kind) {
    case 'denied':
      return (
        <>
          The {x.emergency ? 'emergency' : 'deny'} list has <code>{maskEntry(x.pattern ?? '')}</code>: such requests get 403, whatever their limits.
        </>
      )
    case 'bypassed':
      return (
        <>
          The allow list has <code>{maskEntry(x.pattern ?? '')}</code>: such requests pass without any limit.
        </>
      )
    case 'identity_required':
      return <>A rule refuses requests that lack what it counts by: {x.rules.find((r) => r.refuses)?.why ?? 'give the user, key or attribute that it names'}.</>
    case 'unreadable_path':
      return <>The path is too long, or can be read in too many ways, so that no limit on it can be told.</>
    case 'none':
      return <>No limit is enforced on such a request.</>
    case 'address':
      return (
        <>
          <b class="mono">{b!.rule}</b> counts by address: give the client's IP address.
        </>
      )
    case 'unknown':
      return (
        <>
          The store can't be reached for <b class="mono">{b!.rule}</b>, which does what its on_store_failure says.
        </>
      )
    case 'cooldown':
      return (
        <>
          now by <b class="mono">{b?.rule}</b>, which keeps it out: it kept coming while it was refused. It may come again{' '}
          <b class="num">{countdown(left(b?.retry_after_ms ?? 0, at, now))}</b>, whatever its limits have left.
        </>
      )
    case 'limited': {
      const wait = left(b!.retry_after_ms, at, now)
      return (
        <>
          now by <b class="mono">{b!.rule}</b>: <span class="num">{leftOf(b!).n}</span> {leftOf(b!).of},{' '}
          {wait < 0 ? 'and waiting doesn’t help: such a request never fits.' : b!.in_flight !== undefined ? 'the next fits when one of them ends.' : <>the next fits <b class="num">{countdown(wait)}</b>.</>}
        </>
      )
    }
    case 'within':
      return (
        <>
          now by <b class="mono">{b!.rule}</b>, the tightest: <span class="num">{leftOf(b!).n}</span> {leftOf(b!).of}.
        </>
      )
  }
}

// Headline is about the last hour if the client was refused in it, because a client that asks why may no longer be
// refused.
function Headline(p: VerdictProps) {
  const { verdict: v, info } = p
  const refusing = (info?.rules ?? []).filter((r) => r.refused).sort((a, b) => b.refused - a.refused)
  const now = (
    <>
      <Badge tone={v.tone}>{v.word}</Badge> <Sentence {...p} />
    </>
  )
  if (!refusing.length || v.kind === 'denied') {
    return (
      <>
        <p class="verdict-word">{now}</p>
        {info && !refusing.length && <p class="muted">No rule that counts by this client has refused it in the last hour.</p>}
      </>
    )
  }
  const first = refusing[0]!
  return (
    <>
      <p class="verdict-word">
        <Badge tone="bad">Refused</Badge> by <b class="mono">{first.rule}</b> <b class="num">{plural(first.refused, 'time')}</b> in the last hour, of {plural(first.requests, 'request')}.
        {refusing.length > 1 && (
          <small>
            {' '}
            Also{' '}
            {refusing
              .slice(1, 4)
              .map((r) => `${r.rule} ${plural(r.refused, 'time')}`)
              .join(', ')}
            .
          </small>
        )}
      </p>
      <p class="verdict-now">{now}</p>
    </>
  )
}

function Notes({ x, assumed, focus }: VerdictProps) {
  const unmet = x.rules.find((r) => r.rule === focus && !r.applies)
  return (
    <>
      {assumed && (
        <p class="muted">
          Shown for{' '}
          <code>
            {assumed.method} {assumed.path}
          </code>
          , which <span class="mono">{focus}</span> is for. For another request, type its method and path.
        </p>
      )}
      {unmet && (
        <p class="muted">
          <span class="mono">{focus}</span> doesn't apply to this request: {unmet.why}.
        </p>
      )}
    </>
  )
}

function Facts({ x, info, question: q, check }: VerdictProps) {
  return (
    <dl class="facts-list">
      {info && (
        <div>
          <dt>Client</dt>
          <dd>
            <span class="mono">{info.client}</span> <small class="mono">{info.fingerprint}</small> <small>{kindName(info.kind)}</small>
          </dd>
        </div>
      )}
      {x.tier_why && !x.pattern && (
        <div>
          <dt>Tier</dt>
          <dd>
            {x.tier ? <b>{x.tier}</b> : 'none'} <small>{x.tier_why}</small>
          </dd>
        </div>
      )}
      {(check.path || check.method) && (
        <div>
          <dt>Request</dt>
          <dd class="mono">
            {check.method ?? 'GET'} {x.path ?? check.path}
            {x.paths && <small> read in {x.paths.length} ways</small>}
          </dd>
        </div>
      )}
      {x.key_verified !== undefined && (
        <div>
          <dt>Key</dt>
          <dd>{x.key_verified ? 'taken as verified' : 'taken as not verified'}</dd>
        </div>
      )}
      {q.ip && (
        <div>
          <dt>Address</dt>
          <dd class="mono">{q.ip}</dd>
        </div>
      )}
      {x.ignored?.map((text) => (
        <div key={text}>
          <dt class="text-warn">Ignored</dt>
          <dd>{text}</dd>
        </div>
      ))}
    </dl>
  )
}

// The actions that an operator can take on a client. Each shows its command and what it would change, and can be
// undone.
import type { List } from '../api'
import * as cli from '../cli'
import type { Check, Counter } from '../wire'
import { entryOf, isPasted, nameOf, type Target } from './known'
import type { LimitOf } from './limits'
import { LiftDialog } from './lift'
import { ListDialog } from './list'
import { OverrideDialog, RemoveOverrideDialog } from './override'
import { RaiseDialog } from './raise'
import { ResetDialog } from './reset'

export type Action = { what: 'override'; rule?: string } | { what: 'unoverride'; rule: string } | { what: 'reset' } | { what: 'list'; list: List; remove: boolean } | { what: 'raise'; rule: string } | { what: 'lift'; rule: string }

export interface ActionsProps {
  action: Action
  target: Target | null
  check: Check // the request whose counters are reset
  unverified?: boolean
  counters: Counter[]
  limits: LimitOf[]
  onClose: () => void
  onDone: () => void
}

export function Actions({ action: a, target, check, unverified = false, counters, limits, ...ends }: ActionsProps) {
  if (a.what === 'raise') return <RaiseDialog limits={limits.filter((l) => l.rule === a.rule)} {...ends} />
  const who = target ? cli.who(target.fingerprint, isPasted(target.fingerprint)) : ''
  if (a.what === 'reset') {
    const named = target && !('ip' in nameOf(target.fingerprint)) ? who : ''
    return <ResetDialog name={target?.mask ?? 'this request'} check={check} unverified={unverified} counters={counters} line={cli.counters('reset', named, check, unverified)} {...ends} />
  }
  if (!target) return null
  const entry = entryOf(target.fingerprint)
  switch (a.what) {
    case 'override':
      return <OverrideDialog target={target} limits={limits} rule={a.rule} {...ends} />
    case 'unoverride':
      return <RemoveOverrideDialog name={target.mask} entry={entry} who={who} rule={a.rule} {...ends} />
    case 'lift':
      return <LiftDialog name={target.mask} fingerprint={target.fingerprint} rule={a.rule} {...ends} />
    case 'list':
      return <ListDialog list={a.list} name={target.mask} entry={entry} who={who} remove={a.remove} {...ends} />
  }
}

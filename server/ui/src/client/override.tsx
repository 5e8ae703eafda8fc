import { useState } from 'preact/hooks'
import * as api from '../api'
import * as cli from '../cli'
import { Field, Select } from '../parts/field'
import { Review } from '../review/review'
import { entryOf, isPasted, type Entry, type Target } from './known'
import { burstError, limitError, twice, wireLimit, type LimitOf } from './limits'

const ends = [
  ['15m', 'In 15 minutes'],
  ['1h', 'In an hour'],
  ['4h', 'In 4 hours'],
  ['24h', 'In a day'],
  ['168h', 'In a week'],
  ['never', 'Never: until somebody removes it'],
] as const
type End = (typeof ends)[number][0]

// OverrideDialog gives a key a limit of its own in a rule. It starts with the binding limit.
export function OverrideDialog({ target, limits, rule: asked, onClose, onDone }: { target: Target; limits: LimitOf[]; rule?: string | undefined; onClose: () => void; onDone: () => void }) {
  const [chosen, choose] = useState(limits.find((l) => l.rule === asked) ?? limits[0])
  const [typed, setTyped] = useState(asked ?? '')
  const [limit, setLimit] = useState(chosen ? twice(chosen.limit) : '')
  const [burst, setBurst] = useState('')
  const [end, setEnd] = useState<End>('1h')
  const rule = chosen?.rule ?? typed.trim()
  const wrong = limitError(limit)
  return (
    <Review
      onClose={onClose}
      onDone={onDone}
      change={{
        title: `Override for ${target.mask}`,
        verb: 'Apply the override',
        lead: 'A limit of its own in one rule, for this key alone.',
        problem: wrong || burstError(burst) || (rule ? '' : 'Choose a rule.'),
        about: JSON.stringify([rule, limit, burst, end]),
        send: (o) => api.setOverride({ ...entryOf(target.fingerprint), rule, limit: wireLimit(limit), expires_in: end, ...(burst ? { capacity: Number(burst) } : {}) }, o),
        cli: (o) => cli.override(cli.who(target.fingerprint, isPasted(target.fingerprint)), { rule, limit: limit.trim(), burst: burst.trim(), lasting: end === 'never' ? 'good' : end }, o),
        fields: (
          <div class="form-row">
            {chosen ? (
              <Select
                label="Rule"
                value={chosen.policy}
                options={limits.map((l) => [l.policy, `${l.rule} (${l.limit} now)`] as const)}
                onChange={(policy) => {
                  const l = limits.find((l) => l.policy === policy)!
                  choose(l)
                  setLimit(twice(l.limit))
                }}
              />
            ) : (
              <Field label="Rule" value={typed} onInput={setTyped} mono />
            )}
            <Field
              label="Limit"
              value={limit}
              onInput={setLimit}
              mono
              autoFocus
              error={wrong}
              hint={chosen && (chosen.of > 1 ? `Now ${chosen.limit}. It takes the place of all ${chosen.of} limits of ${rule}.` : `Now ${chosen.limit}.`)}
            />
            <Field label="Burst" value={burst} onInput={setBurst} mono placeholder="as the limit" error={burstError(burst)} hint="At once, of a bucket." />
            <Select label="Ends" value={end} options={ends} onChange={setEnd} />
          </div>
        ),
      }}
    />
  )
}

// RemoveOverrideDialog removes a key's own limit from a rule.
export function RemoveOverrideDialog({ name, entry, who, rule, onClose, onDone }: { name: string; entry: Entry; who: string; rule: string; onClose: () => void; onDone: () => void }) {
  return (
    <Review
      onClose={onClose}
      onDone={onDone}
      change={{
        title: `Remove the override of ${name} in ${rule}`,
        verb: 'Remove the override',
        danger: true,
        lead: 'The key has the numbers of its tier or of the rule again.',
        send: (o) => api.removeOverride({ ...entry, rule }, o),
        cli: (o) => cli.unoverride(who, rule, o),
      }}
    />
  )
}

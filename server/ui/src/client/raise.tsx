import { useState } from 'preact/hooks'
import * as api from '../api'
import * as cli from '../cli'
import { useLoad } from '../load'
import { Button } from '../parts/button'
import { Dialog } from '../parts/dialog'
import { Failed } from '../parts/failed'
import { Field, Select } from '../parts/field'
import { Loading } from '../parts/loading'
import { Review } from '../review/review'
import { navigate, to } from '../router'
import { burstError, limitError, twice, wireLimit, type LimitOf } from './limits'

interface Ends {
  onClose: () => void
  onDone: () => void
}

// RaiseDialog changes a limit for all of its clients: the limit of a tier or of a rule. It starts with the binding
// limit.
export function RaiseDialog({ limits, ...ends }: { limits: LimitOf[] } & Ends) {
  const [{ source, tier, limit, rule }] = limits as [LimitOf]
  if (source !== 'tier') return <OfRule limits={limits} {...ends} />
  return <TierDialog tier={tier!} now={limit} first={twice(limit)} lead={`${rule} takes its number from tier ${tier}, and so may other rules: this is for every client of that tier.`} verb="Apply the limit" {...ends} />
}

// TierDialog changes the numbers of a tier.
export function TierDialog({ tier, now, first = now, burst: had = '', lead, verb = 'Apply', ...ends }: { tier: string; now: string; first?: string; burst?: string; lead: string; verb?: string } & Ends) {
  const [limit, setLimit] = useState(first)
  const [burst, setBurst] = useState(had)
  const numbers = { limit: wireLimit(limit), ...(burst.trim() ? { capacity: Number(burst) } : {}) }
  return (
    <Review
      {...ends}
      change={{
        title: `Change tier ${tier}`,
        verb,
        lead,
        problem: limitError(limit) || burstError(burst),
        about: `${limit} ${burst}`,
        send: (o) => api.putTier(tier, numbers, o),
        cli: (o) => cli.putTier(tier, numbers, o),
        fields: (
          <div class="form-row">
            <Field label="Limit" value={limit} onInput={setLimit} mono autoFocus error={limitError(limit)} hint={`Now ${now}.`} />
            <Field label="Burst" value={burst} onInput={setBurst} mono error={burstError(burst)} hint="How much a bucket holds. Empty leaves it as it is." />
          </div>
        ),
      }}
    />
  )
}

function OfRule({ limits, ...ends }: { limits: LimitOf[] } & Ends) {
  const [chosen, choose] = useState(limits[0]!)
  const [limit, setLimit] = useState(twice(chosen.limit))
  const { rule } = chosen
  const tier = chosen.source === 'rule_tier' ? chosen.tier : undefined
  const loaded = useLoad((signal) => Promise.all([api.rule(rule, signal), import('../views/rules/form-model')]), [rule])
  const title = tier ? `Limit of ${rule} in tier ${tier}` : `Limit of ${rule}`
  if (!loaded.data) {
    return (
      <Dialog open wide onClose={ends.onClose} title={title}>
        {loaded.error ? <Failed error={loaded.error} retry={loaded.reload} /> : <Loading rows={4} />}
      </Dialog>
    )
  }
  const [base, { withLimit }] = loaded.data
  const text = withLimit(base.yaml, chosen.at, limit.trim(), tier)
  if (text === null) {
    return (
      <Dialog
        open
        onClose={ends.onClose}
        title={title}
        footer={
          <Button kind="primary" onClick={() => navigate(to('rules', rule))}>
            Open {rule} in Rules
          </Button>
        }
      >
        <p>Its numbers aren't written as one limit, so they are changed in its text.</p>
      </Dialog>
    )
  }
  const wrong = limitError(limit) || (/^\d+$/.test(limit.trim()) ? 'Give the time, too, such as 200/minute.' : '')
  return (
    <Review
      {...ends}
      change={{
        title,
        verb: 'Apply the limit',
        lead: tier ? `For every client of tier ${tier}, in this rule.` : 'For every client that has the rule’s own number.',
        problem: wrong,
        about: text,
        send: (o) => api.putRule(rule, text, o),
        cli: (o) => cli.putRule(rule, text, o),
        since: base.version,
        covers: async () => (await api.rule(rule)).yaml !== base.yaml,
        fields: (
          <div class="form-row">
            {limits.length > 1 && (
              <Select
                label="Limit to raise"
                value={chosen.policy}
                options={limits.map((l) => [l.policy, l.limit] as const)}
                onChange={(policy) => {
                  const l = limits.find((l) => l.policy === policy)!
                  choose(l)
                  setLimit(twice(l.limit))
                }}
              />
            )}
            <Field label="Limit" value={limit} onInput={setLimit} mono autoFocus error={wrong} hint={`Now ${chosen.limit}.`} width="m" />
          </div>
        ),
      }}
    />
  )
}

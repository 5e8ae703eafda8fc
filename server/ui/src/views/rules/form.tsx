import { Check, Field, Select } from '../../parts/field'
import type { FieldName, Form } from './form-model'
import type { Mark } from './problems'

const algorithms = [
  ['', 'Token bucket (default)'],
  ['token_bucket', 'Token bucket'],
  ['leaky_bucket', 'Leaky bucket'],
  ['queue', 'Leaky bucket, requests wait'],
  ['fixed_window', 'Fixed window'],
  ['sliding_window_log', 'Sliding window, exact log'],
  ['sliding_window_counter', 'Sliding window, counter'],
] as const

const suggestions = ['api_key', 'user', 'org', 'ip', 'method', 'path', 'endpoint', 'tier', 'user, path', '[]']

export interface RuleFormProps {
  form: Form
  marks: Partial<Record<FieldName, Mark>>
  tiers: string[]
  isNew: boolean
  disabled: boolean
  onChange: (field: FieldName, value: string) => void
}

// RuleForm has the fields of a rule that people change most. All others are in the YAML next to it.
export function RuleForm({ form, marks, tiers, isNew, disabled, onChange }: RuleFormProps) {
  const text = (name: FieldName, label: string, o: { hint?: string; placeholder?: string; list?: string[] } = {}) => (
    <Field
      label={label}
      name={name}
      mono
      value={form.values[name]}
      onInput={(v) => onChange(name, v)}
      disabled={disabled || Boolean(form.held[name])}
      error={marks[name]?.kind === 'problem' ? bare(marks[name]) : undefined}
      hint={form.held[name] ?? (marks[name] ? <span class="text-warn">{bare(marks[name])}</span> : o.hint)}
      placeholder={o.placeholder}
      list={o.list}
    />
  )
  const choice = (name: FieldName, label: string, options: readonly (readonly [string, string])[], hint?: string) => {
    const value = form.values[name]
    const known = options.some(([v]) => v === value)
    return (
      <Select
        label={label}
        value={value}
        options={form.held[name] ? [[value, 'As the YAML says']] : known ? options : [...options, [value, value]]}
        onChange={(v) => onChange(name, v)}
        disabled={disabled || Boolean(form.held[name])}
        hint={form.held[name] ?? (marks[name] ? <span class={marks[name].kind === 'problem' ? 'text-bad' : 'text-warn'}>{bare(marks[name])}</span> : hint)}
      />
    )
  }
  const check = (name: FieldName, label: string, hint: string) => (
    <Check label={label} hint={hint} checked={form.values[name] === 'true'} onChange={(v) => onChange(name, v ? 'true' : '')} disabled={disabled || Boolean(form.held[name])} />
  )
  const algorithm = form.values.algorithm
  const bucket = algorithm === '' || algorithm === 'token_bucket' || algorithm === 'leaky_bucket' || algorithm === 'queue'
  return (
    <div class="rule-form">
      {isNew && text('id', 'Id', { hint: 'What clients see when it refuses them: a-z, 0-9, - and _.', placeholder: 'search' })}
      <fieldset>
        <legend>Numbers</legend>
        <div class="pair">
          {text('limit', 'Limit', { hint: tiers.length ? 'Such as 100/minute. Empty: the tier’s.' : 'Such as 100/minute, or 20/second, 5000/hour.', placeholder: '100/minute' })}
          {bucket ? text('burst', algorithm === 'queue' ? 'Queue length' : 'Burst', { hint: 'How much it holds. Empty: the limit.' }) : <div />}
        </div>
        <div class="pair">
          {choice('algorithm', 'Algorithm', algorithms)}
          {algorithm === 'queue' ? text('max_delay', 'Longest wait', { hint: '30s unless it says otherwise.' }) : text('cost', 'Cost', { hint: 'Multiplies the request’s cost.', placeholder: '1' })}
        </div>
      </fieldset>
      <fieldset>
        <legend>Requests that it applies to</legend>
        <div class="pair">
          {text('endpoint', 'Endpoint', { placeholder: 'GET /v1/orders/{id}' })}
          {text('endpoint_regex', 'Endpoint regex', { placeholder: '^/v[12]/reports/' })}
        </div>
        <div class="pair">
          {text('api_key_pattern', 'Key pattern', { placeholder: 'sk_prod_*' })}
          {choice('api_key', 'API key', [
            ['', 'With or without one'],
            ['present', 'With a key'],
            ['absent', 'Without a key'],
          ])}
        </div>
        <div class="pair">
          {choice('tier', 'Tier', [['', 'Any'], ...tiers.map((t) => [t, t] as const)])}
          {text('layer', 'Layer', { hint: 'Rules of one layer are alternatives.' })}
        </div>
      </fieldset>
      <fieldset>
        <legend>Counting</legend>
        <div class="pair">
          {text('by', 'Count by', { hint: 'Such as user, path or header:NAME. [] is one counter for all.', placeholder: 'api_key', list: suggestions })}
          {choice('missing', 'If a value is missing', [
            ['', 'Count by address (default)'],
            ['ip', 'Count by address'],
            ['skip', 'Don’t count'],
            ['refuse', 'Refuse with 403'],
          ])}
        </div>
        <div class="pair">
          {text('ipv4_prefix', 'IPv4 prefix', { hint: 'Bits of an address that count. Empty: the node’s.', placeholder: '32' })}
          {text('ipv6_prefix', 'IPv6 prefix', { hint: 'Bits of an address that count. Empty: the node’s.', placeholder: '64' })}
        </div>
        <div class="pair">
          {text('status', 'Answers that count', { hint: 'Statuses such as 401, 403 or 4xx. Empty: all.' })}
          {choice('past_limit', 'A cost that doesn’t fit', [
            ['', 'Is refused (default)'],
            ['refuse', 'Is refused'],
            ['book', 'Is booked all the same'],
            ['count', 'Is refused, and counted'],
          ])}
        </div>
      </fieldset>
      <fieldset>
        <legend>Enforcement</legend>
        <div class="pair">
          {choice('on_store_failure', 'Without the store', [
            ['', 'Allow (default)'],
            ['allow', 'Allow'],
            ['refuse', 'Refuse with 503'],
            ['local', 'Count on each node'],
          ])}
          {text('candidate', 'Candidate', { hint: 'A limit that only counts what it would refuse.', placeholder: '50/minute' })}
        </div>
        <div class="pair">
          {choice('abuse', 'Clients that don’t stop', [
            ['', 'As the document says (default)'],
            ['true', 'Are kept out for a while'],
            ['false', 'Are never kept out'],
          ])}
          {text('split', 'Split', { hint: 'Parts of each counter, over a Redis Cluster. Strict rules only.' })}
        </div>
        <div class="pair">
          {check('shadow', 'Shadow', 'Count and report, enforce nothing.')}
          {check('strict', 'Strict', 'Ask the store at every check.')}
        </div>
      </fieldset>
      {(form.tiers.length > 0 || form.overrides > 0) && (
        <p class="muted">
          The YAML also has {[form.tiers.length > 0 && `limits for ${form.tiers.join(', ')}`, form.overrides > 0 && `overrides for ${form.overrides === 1 ? '1 key' : `${form.overrides} keys`}`].filter(Boolean).join(' and ')}.
        </p>
      )}
    </div>
  )
}

// bare removes the path from a mark's text, because the mark is shown at its field.
const bare = (m: Mark) => m.text.replace(/^[\w.[\]]+: /, '')

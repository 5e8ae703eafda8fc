// The user's own rules: YAML, a request, and which rules apply to it. Neither leaves this page.
import { useEffect, useRef, useState } from 'preact/hooks'
import { Badge } from '../parts/badge'
import { Card } from '../parts/card'
import { Field } from '../parts/field'
import { call, type Explanation, type Problem, type TypedRequest } from './engine'
import type { Player } from './player'

const example = `rules:
  - id: client
    limit: 20/minute
    burst: 5
  - id: login
    match: {endpoint: POST /login}
    by: [ip]
    algorithm: fixed_window
    limit: 3/10s
`

const requestFields: [keyof TypedRequest, string, string][] = [
  ['method', 'Method', 'POST'],
  ['path', 'Path', '/login'],
  ['key', 'API key', 'sk_test'],
  ['ip', 'IP address', '203.0.113.7'],
  ['user', 'User', ''],
  ['org', 'Organisation', ''],
  ['tier', 'Tier', ''],
  ['cost', 'Cost', '1'],
]

// The text survives a switch to the algorithms and back, but not a reload, because it may contain keys.
let text = example
let request = Object.fromEntries(requestFields.map(([name, , value]) => [name, value]))

const reasons: Record<string, string> = {
  denied: 'The deny list refuses this request, before any rule.',
  bypassed: 'The allow list lets this request through, past all rules.',
  identity_required: 'A rule refuses requests that lack what it counts by.',
  cooldown: 'The client kept coming while it was refused: the rule keeps it out for a while.',
  unreadable_path: "The path is too long, or can be read in too many ways: it is refused.",
}

export function OwnRules({ player, onReady, onExplained }: { player: Player; onReady: (ready: boolean) => void; onExplained: (x: Explanation | undefined) => void }) {
  const [typed, setTyped] = useState(text)
  const [fields, setFields] = useState(request)
  const [problems, setProblems] = useState<Problem[]>([])
  const [warnings, setWarnings] = useState<Problem[]>([])
  const [error, setError] = useState('')
  const area = useRef<HTMLDivElement>(null)

  const ask = () => {
    try {
      const { explanation, ...scene } = call('ask', { ...(request as unknown as TypedRequest), cost: Number(request.cost) })
      onExplained(explanation)
      setError('')
      player.open(scene)
      onReady(true)
    } catch (e) {
      setError((e as Error).message)
      onReady(false)
    }
  }
  const took = useRef(0)
  const read = () => {
    const began = performance.now()
    const found = call('rules', { text })
    took.current = performance.now() - began
    setProblems(found.problems)
    setWarnings(found.warnings)
    onReady(!found.problems.length)
    if (found.problems.length) return onExplained(undefined)
    player.clear()
    ask()
  }
  useEffect(read, [])
  useEffect(() => {
    if (typed === text) return
    const t = setTimeout(() => ((text = typed), read()), Math.max(250, 4 * took.current)) // long rules wait for a longer pause in typing
    return () => clearTimeout(t)
  }, [typed])

  const goTo = (p: Problem) => {
    const t = area.current!.querySelector('textarea')!
    const lines = typed.split('\n')
    const at = lines.slice(0, p.line - 1).join('\n').length + (p.line > 1 ? 1 : 0) + p.column - 1
    t.focus()
    t.setSelectionRange(at, at)
  }

  return (
    <>
      <Card title="Your rules">
        <div ref={area} class="stack small">
          <Field label="Rules, as YAML" hideLabel rows={12} mono value={typed} onInput={setTyped} hint="They stay in this page: nothing is sent." />
          <div role="status" aria-label="What is wrong with the rules">
            {[...problems, ...warnings].map((p, i) => (
              <p key={i} class="problem">
                <Badge tone={i < problems.length ? 'bad' : 'warn'}>{i < problems.length ? 'wrong' : 'careful'}</Badge>{' '}
                {p.line > 0 && (
                  <button type="button" class="place mono" onClick={() => goTo(p)}>
                    {p.line}:{p.column}
                  </button>
                )}{' '}
                {p.text}
                {p.hint && `; ${p.hint}`}
              </p>
            ))}
          </div>
        </div>
      </Card>
      <Card title="The request">
        <div class="numbers">
          {requestFields.map(([name, label]) => (
            <Field
              key={name}
              label={label}
              value={fields[name]!}
              mono
              onInput={(v) => {
                request = { ...request, [name]: v }
                setFields(request)
                if (!problems.length) ask()
              }}
              error={error.startsWith(`${name}:`) ? error : ''}
            />
          ))}
        </div>
        {error && !requestFields.some(([name]) => error.startsWith(`${name}:`)) && <p class="field-error">{error}</p>}
      </Card>
    </>
  )
}

export function Applies({ x }: { x: Explanation }) {
  return (
    <Card title="Which rules apply">
      <ul class="applies">
        {reasons[x.reason] && <li>{reasons[x.reason]}</li>}
        {x.reason === 'unlimited' && !x.rules.length && <li>There are no rules: nothing is limited.</li>}
        {x.rules.map((r) => (
          <li key={r.id}>
            <Badge tone={r.applies ? 'ok' : 'plain'}>{r.applies ? 'applies' : 'does not'}</Badge> <strong>{r.id}</strong>
            <p class="muted">
              {r.applies ? `${r.limits.join(', ')}; counted by ${r.by.join(', ') || 'nothing: one counter for all'}; numbers from ${r.from}; ` : ''}
              {r.why}.
            </p>
          </li>
        ))}
      </ul>
    </Card>
  )
}

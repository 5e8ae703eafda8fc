import { useEffect, useState } from 'preact/hooks'
import { openPasted, readPaste, recognise } from '../../client/known'
import { asError } from '../../load'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Check, Field } from '../../parts/field'
import { Icon } from '../../parts/icon'
import { to } from '../../router'
import type { ClientInfo } from '../../wire'
import { nothing, type Question, type Secrets } from './question'

const methods = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS']

// Ask is the form for a question. A key is sent in a POST body, and then removed from the field.
export function Ask({ question, secrets, rules, onAsk }: { question: Question; secrets: Secrets; rules: string[]; onAsk: (q: Question, s: Secrets) => void }) {
  const [q, setQ] = useState(question)
  const [s, setS] = useState(secrets)
  const [key, setKey] = useState('')
  const [error, setError] = useState('')
  const [busy, setBusy] = useState(false)
  const address = JSON.stringify(question)
  useEffect(() => setQ(question), [address])

  const set = (part: Partial<Question>) => setQ({ ...q, ...part })
  const submit = async () => {
    setBusy(true)
    setError('')
    try {
      let next = { ...q, path: withSlash(q.path.trim()) }
      const known = (info: ClientInfo) => (next = { ...next, client: info.fingerprint, as: info.client })
      const pasted = readPaste(key)
      if (pasted && 'rule' in pasted) next.rule = pasted.rule
      else if (pasted && 'ip' in pasted) next.ip = pasted.ip
      else if (pasted) known(await openPasted(pasted))
      else if (!next.client && s.user.trim()) known(await recognise({ user: s.user.trim() }))
      setKey('')
      onAsk(next, { ...s, user: s.user.trim() })
    } catch (e) {
      setError(asError(e).message)
    }
    setBusy(false)
  }

  const more = Boolean(q.ip || q.org || q.tier || q.cost || q.unverified || s.user || s.attributes)
  return (
    <Card class="ask">
      <form
        class="stack"
        role="search"
        aria-label="Ask why"
        onSubmit={(e) => {
          e.preventDefault()
          void submit()
        }}
      >
        <div class="ask-row">
          {question.client ? (
            <div class="field">
              <span class="label">Client</span>
              <div class="chip">
                <a class="mono" href={to('keys', question.client, { as: question.as })} title="Open the client's page">
                  {question.as || question.client}
                </a>
                <small class="mono">{question.as && question.client}</small>
                <Button quiet small label="Ask about another client" onClick={() => onAsk({ ...question, client: '', as: '' }, secrets)}>
                  <Icon name="close" />
                </Button>
              </div>
            </div>
          ) : (
            <Field
              label="Key"
              search
              mono
              value={key}
              onInput={setKey}
              error={error}
              placeholder="Paste a key or a refusal"
            />
          )}
          <Field label="Rule" mono value={q.rule} onInput={(rule) => set({ rule })} list={rules} placeholder="any" />
          <Field label="Method" mono value={q.method} onInput={(method) => set({ method: method.toUpperCase() })} list={methods} placeholder="GET" />
          <Field label="Path" mono value={q.path} onInput={(path) => set({ path })} placeholder="/v1/orders/17" />
          <Button submit kind="primary" busy={busy}>
            Explain
          </Button>
        </div>
        <details class="ask-more" open={more}>
          <summary>More of the request</summary>
          <div class="ask-grid">
            <Field label="IP address" mono value={q.ip} onInput={(ip) => set({ ip })} placeholder="203.0.113.7" />
            <Field label="User" mono value={s.user} onInput={(user) => setS({ ...s, user })} hint="Not in the address." />
            <Field label="Organisation" mono value={q.org} onInput={(org) => set({ org })} />
            <Field label="Tier" mono value={q.tier} onInput={(tier) => set({ tier })} hint="That the request carries." />
            <Field label="Cost" mono value={q.cost} onInput={(cost) => set({ cost: cost.replace(/\D/g, '') })} placeholder="1" />
            <Field label="Attributes" mono rows={2} value={s.attributes} onInput={(attributes) => setS({ ...s, attributes })} placeholder={'header:X-Tenant=acme\nregion=eu'} hint="One a line. Not in the address." />
            <Check label="The key isn't verified" hint="As by a gateway that can't tell." checked={q.unverified} onChange={(unverified) => set({ unverified })} />
          </div>
        </details>
        <p class="ask-note muted">
          A key is posted to this node and kept in this page's memory alone: the address has its fingerprint and its mask.
          {asks(question) && (
            <>
              {' '}
              <button
                type="button"
                class="link"
                onClick={() => {
                  setS({ user: '', attributes: '' })
                  onAsk(nothing, { user: '', attributes: '' })
                }}
              >
                Start again
              </button>
            </>
          )}
        </p>
      </form>
    </Card>
  )
}

const asks = (q: Question) => JSON.stringify(q) !== JSON.stringify(nothing)
const withSlash = (path: string) => (path && !path.startsWith('/') ? `/${path}` : path)

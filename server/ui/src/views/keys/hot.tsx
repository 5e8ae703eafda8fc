import { useState } from 'preact/hooks'
import * as api from '../../api'
import { Clients } from '../../client/clients'
import { Coverage } from '../../client/coverage'
import { openPasted, readPaste } from '../../client/known'
import { rate } from '../../format'
import { useKeys } from '../../keyboard'
import { asError, usePoll } from '../../load'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Field, Segments } from '../../parts/field'
import { Loading } from '../../parts/loading'
import { Trouble } from '../../parts/trouble'
import { navigate, to, useQuery } from '../../router'
import type { Top } from '../../wire'

const orders = [
  ['requests', 'By requests'],
  ['refused', 'By refusals'],
] as const

// Hot lists the clients that currently send the most requests, or are refused the most. The search text may be a key,
// so it isn't in the address.
export function Hot() {
  const [by, setBy] = useQuery<'requests' | 'refused'>('by', 'requests')
  const [rule, setRule] = useQuery('rule', '')
  const [typed, setTyped] = useState(rule)
  const [find, setFind] = useState('')
  const [error, setError] = useState('')
  const [held, setHeld] = useState<Top | null>(null)
  const top = usePoll((signal) => api.top({ by, k: 200, rule }, signal), 2000, [by, rule])
  const t = held ?? top.data

  const hold = () => setHeld(held ? null : (top.data ?? null))
  useKeys([{ keys: 'p', says: held ? 'Go on' : 'Pause', run: hold }])

  const wanted = find.trim().toLowerCase()
  const clients = t?.clients.filter((c) => (by === 'requests' || c.refused > 0) && (!wanted || `${c.client} ${c.fingerprint} ${c.rule}`.toLowerCase().includes(wanted))) ?? []
  const ids = t?.rules.map((r) => r.rule).slice(0, 500) ?? []
  const page = (fingerprint: string, as: string) => to('keys', fingerprint, { as, rule })

  // Enter opens the only client that matches, or the client whose key was pasted.
  const open = async () => {
    setError('')
    const pasted = readPaste(find)
    if (!pasted) return
    if (clients.length === 1) return navigate(page(clients[0]!.fingerprint, clients[0]!.client))
    if ('rule' in pasted) return navigate(to('why', '', { rule: pasted.rule }))
    try {
      const info = await openPasted(pasted)
      navigate(page(info.fingerprint, info.client))
    } catch (e) {
      setError(asError(e).message)
    }
  }

  return (
    <>
      <form
        class="tools"
        role="search"
        aria-label="Find a client"
        onSubmit={(e) => {
          e.preventDefault()
          setRule(typed.trim())
          void open()
        }}
      >
        <Segments label="Order" value={by} options={orders} onChange={setBy} />
        <Field label="Find" search mono value={find} onInput={(v) => (setFind(v), setError(''))} error={error} placeholder="Mask, or paste a key" />
        <Field
          label="Rule"
          mono
          value={typed}
          list={ids}
          placeholder="any"
          onInput={(v) => {
            setTyped(v)
            if (!v || ids.includes(v)) setRule(v)
          }}
        />
        <Button submit>Open</Button>
        <Button pressed={held !== null} onClick={hold}>
          {held ? 'Go on' : 'Pause'}
        </Button>
      </form>
      {top.error && t && (
        <Trouble title="These are the last numbers that came">
          <p>{top.error.message}</p>
        </Trouble>
      )}
      <Card title={rule ? `Clients that ${rule} binds` : 'Clients'} flush aside={
          t && (
            <Coverage of={t}>
              <span class={`from-640 ${t.missing_below > 0 ? '' : 'unseen'}`}>clients below {rate(t.missing_below)}/s may be missing</span>
              {held && <b>paused</b>}
            </Coverage>
          )
        }>
        {top.error && !t ? (
          <Failed error={top.error} retry={top.reload} />
        ) : !t ? (
          <Loading rows={8} />
        ) : (
          <Clients
            label="Hot clients"
            clients={clients}
            href={(c) => page(c.fingerprint, c.client)}
            empty={
              wanted ? (
                <Empty title="None of the hot clients looks like that">
                  <p>If it is a key, Enter opens its page. It is posted, and stays out of the address.</p>
                </Empty>
              ) : (
                <Empty title={by === 'refused' ? 'Nobody was refused in the last ten seconds' : 'No requests in the last ten seconds'}>
                  <p>
                    Clients appear as they ask. Who isn't hot can be opened by its key; to see some, try <code>weir bench 127.0.0.1:8080 --rate 50/s</code>.
                  </p>
                </Empty>
              )
            }
          />
        )}
      </Card>
    </>
  )
}

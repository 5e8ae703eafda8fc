import { useState } from 'preact/hooks'
import * as api from '../../api'
import { AddDialog, ListDialog, whoOf } from '../../client/list'
import { isAddress, maskEntry, recognise } from '../../client/known'
import { plural } from '../../format'
import { useLoad } from '../../load'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Field } from '../../parts/field'
import { Loading } from '../../parts/loading'
import { Table, type Column } from '../../parts/table'
import { Time } from '../../parts/time'
import { fail } from '../../parts/toast'
import { navigate, to } from '../../router'
import { useMay } from '../../session'
import type { Block } from '../../wire'

const kindOf = (entry: string) => (entry.includes('*') ? 'pattern' : entry.includes('/') ? 'range' : isAddress(entry) ? 'address' : 'key')

const words = {
  denylist: { title: 'Blocked', add: 'Block', off: 'Unblock', none: 'Nobody is blocked', what: 'Requests of these keys and addresses get 403, whatever their limits.' },
  allowlist: { title: 'Allowed', add: 'Allow', off: 'Stop allowing', none: 'Nobody passes without limits', what: 'Requests of these keys, if verified, and addresses pass without limits.' },
}

// Row is an entry of a list in the rules, or of the emergency list.
interface Row {
  entry: string
  block?: Block
}

// Listed shows the deny list or the allow list. Keys are masked. A row opens the client's page.
export function Listed({ list }: { list: api.List }) {
  const w = words[list]
  const loaded = useLoad(() => api.list(list), [list])
  const rules = useMay('rules')
  const operate = useMay('operate')
  const [find, setFind] = useState('')
  const [adding, setAdding] = useState(false)
  const [removing, setRemoving] = useState('')
  const all: Row[] = [...(loaded.data?.emergency ?? []).map((block) => ({ entry: block.entry, block })), ...(loaded.data?.entries ?? []).map((entry) => ({ entry }))]
  const rows = all.filter((r) => !find.trim() || r.entry.includes(find.trim()))

  const columns: Column<Row>[] = [
    {
      id: 'entry',
      head: 'Entry',
      sort: (r) => r.entry,
      cell: ({ entry, block }) => (
        <>
          <span class="mono">{maskEntry(entry)}</span>{' '}
          {block && (
            <>
              <Badge tone="warn" title="It applies beside the rules, until it is unblocked.">
                Emergency list
              </Badge>{' '}
              <small class="muted">
                by {block.by || 'somebody'} <Time at={block.since} />
                {block.message && `: ${block.message}`}
              </small>
            </>
          )}
        </>
      ),
    },
    { id: 'kind', head: 'Kind', width: '6rem', wide: 640, sort: (r) => kindOf(r.entry), cell: (r) => kindOf(r.entry) },
    {
      id: 'do',
      head: <span class="hidden">Actions</span>,
      width: '9rem',
      number: true,
      cell: ({ entry, block }) => (
        <Button small why={block ? operate : rules} onClick={() => setRemoving(entry)}>
          {w.off}
        </Button>
      ),
    },
  ]
  const open = ({ entry: e }: Row) => {
    const kind = kindOf(e)
    if (kind !== 'key' && kind !== 'address') return
    return () => void recognise(kind === 'key' ? { key: e } : { ip: e }).then((c) => navigate(to('keys', c.fingerprint, { as: c.client })), fail)
  }

  return (
    <>
      <div class="tools">
        <Field label="Find" search mono value={find} onInput={setFind} placeholder="Part of an entry" />
        <Button kind="primary" why={list === 'denylist' ? operate : rules} onClick={() => setAdding(true)}>
          {w.add}…
        </Button>
      </div>
      <Card title={w.title} flush aside={loaded.data && plural(all.length, 'entry', 'entries')}>
        {loaded.error ? (
          <Failed error={loaded.error} retry={loaded.reload} />
        ) : !loaded.data ? (
          <Loading rows={4} />
        ) : (
          <Table
            label={w.title}
            rows={rows}
            rowKey={(r) => (r.block ? 'emergency ' : '') + r.entry}
            columns={columns}
            onOpen={open}
            empty={
              <Empty title={find ? 'No entry has that in it' : w.none}>
                <p>{w.what}</p>
              </Empty>
            }
          />
        )}
      </Card>
      {adding && <AddDialog list={list} onClose={() => setAdding(false)} onDone={loaded.reload} />}
      {removing && <ListDialog list={list} name={maskEntry(removing)} entry={{ key: removing }} who={whoOf(removing)} remove onClose={() => setRemoving('')} onDone={loaded.reload} />}
    </>
  )
}

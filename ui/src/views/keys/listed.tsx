import { useState } from 'preact/hooks'
import * as api from '../../api'
import { AddDialog, ListDialog, whoOf } from '../../client/list'
import { isAddress, maskEntry, recognise } from '../../client/known'
import { plural } from '../../format'
import { useLoad } from '../../load'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Field } from '../../parts/field'
import { Loading } from '../../parts/loading'
import { Table, type Column } from '../../parts/table'
import { fail } from '../../parts/toast'
import { navigate, to } from '../../router'
import { useMay } from '../../session'

const kindOf = (entry: string) => (entry.includes('*') ? 'pattern' : entry.includes('/') ? 'range' : isAddress(entry) ? 'address' : 'key')

const words = {
  denylist: { title: 'Blocked', add: 'Block', off: 'Unblock', none: 'Nobody is blocked', what: 'Requests of these keys and addresses get 403, whatever their limits.' },
  allowlist: { title: 'Allowed', add: 'Allow', off: 'Stop allowing', none: 'Nobody passes without limits', what: 'Requests of these keys, if verified, and addresses pass without limits.' },
}

// Listed is the deny list or the allow list. Keys are masked; a row opens the client's page.
export function Listed({ list }: { list: api.List }) {
  const w = words[list]
  const loaded = useLoad(() => api.list(list), [list])
  const may = useMay('rules')
  const [find, setFind] = useState('')
  const [adding, setAdding] = useState(false)
  const [removing, setRemoving] = useState('')
  const entries = (loaded.data?.entries ?? []).filter((e) => !find.trim() || e.includes(find.trim()))

  const columns: Column<string>[] = [
    { id: 'entry', head: 'Entry', sort: (e) => e, cell: (e) => <span class="mono">{maskEntry(e)}</span> },
    { id: 'kind', head: 'Kind', width: '6rem', wide: 640, sort: kindOf, cell: kindOf },
    {
      id: 'do',
      head: <span class="hidden">Actions</span>,
      width: '9rem',
      number: true,
      cell: (e) => (
        <Button small why={may} onClick={() => setRemoving(e)}>
          {w.off}
        </Button>
      ),
    },
  ]
  const open = (e: string) => {
    const kind = kindOf(e)
    if (kind !== 'key' && kind !== 'address') return
    return () => void recognise(kind === 'key' ? { key: e } : { ip: e }).then((c) => navigate(to('keys', c.fingerprint, { as: c.client })), fail)
  }

  return (
    <>
      <div class="tools">
        <Field label="Find" search mono value={find} onInput={setFind} placeholder="Part of an entry" />
        <Button kind="primary" why={may} onClick={() => setAdding(true)}>
          {w.add}…
        </Button>
      </div>
      <Card title={w.title} flush aside={loaded.data && plural(loaded.data.entries.length, 'entry', 'entries')}>
        {loaded.error ? (
          <Failed error={loaded.error} retry={loaded.reload} />
        ) : !loaded.data ? (
          <Loading rows={4} />
        ) : (
          <Table
            label={w.title}
            rows={entries}
            rowKey={(e) => e}
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

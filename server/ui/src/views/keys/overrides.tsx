import { useState } from 'preact/hooks'
import * as api from '../../api'
import { nodeTime } from '../../clock'
import { RemoveOverrideDialog } from '../../client/override'
import { maskEntry, recognise } from '../../client/known'
import { plural } from '../../format'
import { useLoad } from '../../load'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Field } from '../../parts/field'
import { Loading } from '../../parts/loading'
import { Num } from '../../parts/num'
import { Table, type Column } from '../../parts/table'
import { Time } from '../../parts/time'
import { fail } from '../../parts/toast'
import { navigate, to } from '../../router'
import { useMay } from '../../session'
import { liveOverrides, type LiveOverride } from './live'

// Overrides lists the overrides that apply now. Those that end first come first.
export function Overrides() {
  const loaded = useLoad((signal) => api.document(signal).then(({ document }) => liveOverrides(document ?? {}, nodeTime())), [])
  const may = useMay('rules')
  const [find, setFind] = useState('')
  const [removing, setRemoving] = useState<LiveOverride | null>(null)
  const wanted = find.trim()
  const rows = (loaded.data ?? []).filter((o) => !wanted || o.key.includes(wanted) || o.rule.includes(wanted))
  const columns: Column<LiveOverride>[] = [
    { id: 'key', head: 'Key', sort: (o) => o.key, cell: (o) => <span class="mono">{maskEntry(o.key)}</span> },
    {
      id: 'rule',
      head: 'Rule',
      width: '8rem',
      sort: (o) => o.rule,
      cell: (o) => (
        <a class="mono" href={to('rules', o.rule)}>
          {o.rule}
        </a>
      ),
    },
    { id: 'limit', head: 'Limit', number: true, width: '8rem', cell: (o) => <span class="num">{o.limit}</span> },
    { id: 'burst', head: 'Burst', number: true, width: '6rem', wide: 960, cell: (o) => (o.burst === null ? <span class="muted">as the limit</span> : <Num value={o.burst} />) },
    { id: 'ends', head: 'Ends', number: true, width: '7rem', sort: (o) => (o.expires ? Date.parse(o.expires) : null), cell: (o) => <Time at={o.expires} none="never" /> },
    {
      id: 'do',
      head: <span class="hidden">Actions</span>,
      width: '6.5rem',
      number: true,
      cell: (o) => (
        <Button small why={may} onClick={() => setRemoving(o)}>
          Remove
        </Button>
      ),
    },
  ]
  return (
    <>
      <div class="tools">
        <Field label="Find" search mono value={find} onInput={setFind} placeholder="Part of a key or a rule" />
      </div>
      <Card title="Overrides" flush aside={loaded.data && plural(loaded.data.length, 'override')}>
        {loaded.error ? (
          <Failed error={loaded.error} retry={loaded.reload} />
        ) : !loaded.data ? (
          <Loading rows={4} />
        ) : (
          <Table
            label="Overrides"
            rows={rows}
            rowKey={(o) => `${o.rule} ${o.key}`}
            columns={columns}
            minWidth="40rem"
            onOpen={(o) => () => void recognise({ key: o.key }).then((c) => navigate(to('keys', c.fingerprint, { as: c.client, rule: o.rule })), fail)}
            empty={
              <Empty title={wanted ? 'No override has that in it' : 'No key has a limit of its own'}>
                <p>An override gives one key another limit in a rule, for a while or for good: open the client, and give it one there.</p>
              </Empty>
            }
          />
        )}
      </Card>
      {removing && (
        <RemoveOverrideDialog
          name={maskEntry(removing.key)}
          entry={{ key: removing.key }}
          who="-"
          rule={removing.rule}
          onClose={() => setRemoving(null)}
          onDone={loaded.reload}
        />
      )}
    </>
  )
}

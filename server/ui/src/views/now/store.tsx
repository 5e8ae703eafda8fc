import { micros, short } from '../../format'
import { Badge, type Tone } from '../../parts/badge'
import { Card } from '../../parts/card'
import { Mini } from '../../parts/mini'
import { Time } from '../../parts/time'
import type { Now, NowShard } from '../../wire'
import { few, rest } from './words'

const breakers: Record<NowShard['breaker'], { tone: Tone; title: string }> = {
  closed: { tone: 'ok', title: 'Calls go through.' },
  open: { tone: 'bad', title: "Checks don't wait for it; a probe looks for it ten times a second." },
  probing: { tone: 'warn', title: 'It is asked as usual, but its last call failed, or none has succeeded yet.' },
}

const time = (us: number | null) => (us === null ? '–' : micros(us))

// StoreCard shows each server of the store with its breaker.
export function StoreCard({ now }: { now: Now }) {
  const { store } = now
  const list = few(store.shards, (s) => s.up && s.breaker === 'closed')
  return (
    <Card title="Store" aside={<span class="mono clip">{store.url}</span>} flush>
      {store.shards.length ? (
        <Mini
          label="Store"
          rows={list.rows}
          rowKey={(s) => s.name}
          below={(s) =>
            !s.up && (
              <span class="text-bad">
                Lost <Time at={s.since} none="" />
                {s.error && `: ${s.error}`}
              </span>
            )
          }
          last={rest(list, 'server')}
          columns={[
            { id: 'server', head: 'Server', cell: (s) => <span title={s.name}>{s.name}</span> },
            {
              id: 'breaker',
              head: 'Breaker',
              width: '6.75rem',
              cell: (s) => (
                <Badge tone={breakers[s.breaker].tone} title={breakers[s.breaker].title}>
                  {s.breaker}
                </Badge>
              ),
            },
            { id: 'median', head: 'median', number: true, wide: 640, cell: (s) => time(s.p50_us) },
            { id: 'p99', head: 'p99', number: true, cell: (s) => time(s.p99_us) },
            { id: 'keys', head: 'keys', number: true, width: '3.5rem', wide: 640, cell: (s) => (s.keys === undefined ? '–' : short(s.keys)) },
          ]}
        />
      ) : (
        <p class="note">Counters are in this process. There is nothing to lose a connection to, and other nodes don't share them.</p>
      )}
    </Card>
  )
}

import type { ComponentChildren } from 'preact'
import { count, rate } from '../format'
import { Num } from '../parts/num'
import { Spark } from '../parts/spark'
import { Table, type Column } from '../parts/table'
import type { TopClient } from '../wire'

const kinds: Record<string, string> = { api_key: 'key', user: 'user', ip: 'address', none: 'no identity' }
export const kindName = (kind: string) => kinds[kind] ?? kind.replaceAll('_', ' ')

// ClientName shows a client's masked key with its fingerprint, because different clients may have the same mask.
export function ClientName({ mask, fingerprint, href }: { mask: string; fingerprint: string; href?: string | undefined }) {
  const name = mask || '(none)'
  return (
    <>
      {href ? (
        <a class="mono client-mask" href={href}>
          {name}
        </a>
      ) : (
        <span class="mono client-mask">{name}</span>
      )}{' '}
      <small class="mono">{fingerprint}</small>
    </>
  )
}

// Clients is a live table of busy clients.
export function Clients({ label, clients, href, empty }: { label: string; clients: TopClient[]; href: (c: TopClient) => string; empty?: ComponentChildren }) {
  const columns: Column<TopClient>[] = [
    { id: 'client', head: 'Client', cell: (c) => <ClientName mask={c.client} fingerprint={c.fingerprint} href={href(c)} /> },
    { id: 'kind', head: 'Kind', width: '6rem', wide: 960, cell: (c) => kindName(c.kind) },
    {
      id: 'rule',
      head: 'Rule',
      title: 'The rule that binds the most of its requests',
      width: '10rem',
      wide: 640,
      cell: (c) =>
        c.rule ? (
          <>
            {c.rule} {c.more_rules > 0 && <small title={`${count(c.more_rules)} more bind the others`}>+{c.more_rules}</small>}
          </>
        ) : (
          <span class="muted">none</span>
        ),
    },
    {
      id: 'requests',
      head: 'Req/s',
      title: 'Requests a second, over the last ten',
      number: true,
      width: '5.5rem',
      cell: (c) => (
        <span title={c.plus_minus ? `± ${rate(c.plus_minus)}, since decisions are sampled` : undefined}>
          {c.plus_minus ? '≈ ' : ''}
          <Num value={c.requests} as={rate} />
        </span>
      ),
    },
    { id: 'refused', head: 'Refused/s', number: true, width: '6rem', cell: (c) => <Num value={c.refused} as={rate} tone={c.refused > 0 ? 'bad' : undefined} /> },
    {
      id: 'minute',
      head: 'Last minute',
      width: '9rem',
      wide: 960,
      cell: (c) => <Spark values={c.history.requests} over={c.history.refused} label={`Requests and refusals of the last minute: ${rate(c.requests)} and ${rate(c.refused)} a second now`} />,
    },
  ]
  return <Table label={label} rows={clients} rowKey={(c) => c.fingerprint} columns={columns} href={href} empty={empty} />
}

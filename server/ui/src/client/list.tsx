import { useState } from 'preact/hooks'
import * as api from '../api'
import * as cli from '../cli'
import { Field } from '../parts/field'
import { Review, type Change } from '../review/review'
import { maskEntry, type Entry } from './known'

const words = {
  denylist: {
    put: ['Block', 'Each of its requests is refused with 403, whatever its limits, on every node.'],
    remove: ['Unblock', 'Its requests are counted and limited as those of others again.'],
  },
  allowlist: {
    put: ['Allow', 'Its requests pass without any limit, on every node, as long as its key is verified.'],
    remove: ['Stop allowing', 'Its requests are counted and limited as those of others again.'],
  },
} as const

function changeOf(list: api.List, name: string, entry: Entry, who: string, remove: boolean): Change {
  const [verb, lead] = words[list][remove ? 'remove' : 'put']
  return {
    title: `${verb} ${name}`,
    lead,
    verb,
    danger: list === 'denylist' && !remove,
    send: (o) => api.listEntry(list, { ...entry, ...(remove ? { remove } : {}) }, o),
    cli: (o) => cli.listEntry(list, who, remove, o),
  }
}

interface Ends {
  onClose: () => void
  onDone: () => void
}

// ListDialog adds a client to the deny list or the allow list, or removes it.
export const ListDialog = ({ list, name, entry, who, remove, ...ends }: { list: api.List; name: string; entry: Entry; who: string; remove: boolean } & Ends) => (
  <Review {...ends} change={changeOf(list, name, entry, who, remove)} />
)

// AddDialog adds a typed entry to a list: a key, a pattern, an IP address or a range.
export function AddDialog({ list, ...ends }: { list: api.List } & Ends) {
  const [text, setText] = useState('')
  const entry = text.trim()
  return (
    <Review
      {...ends}
      change={{
        ...changeOf(list, 'a key or addresses', { key: entry }, whoOf(entry), false),
        problem: entry ? '' : 'Give a key, a pattern or addresses.',
        about: entry,
        fields: <Field label="Key, pattern or addresses" mono autoFocus value={text} onInput={setText} placeholder="sk_test_* or 203.0.113.0/24" hint="* stands for any characters." />,
      }}
    />
  )
}

// whoOf returns how a command names an entry: in full if it isn't secret, and as - if it is a key.
export const whoOf = (entry: string) => (maskEntry(entry) === entry ? cli.arg(entry) : '-')

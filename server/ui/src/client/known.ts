// Identifies clients. A pasted key is kept only in this page's memory, under its fingerprint, until the page is closed
// or reloaded. Addresses, history and storage have only the fingerprint and the mask.
import * as api from '../api'
import { asError } from '../load'
import type { ClientInfo, ClientKind, ClientName } from '../wire'

const pasted = new Map<string, ClientName>()

export interface Target {
  fingerprint: string
  mask: string
  kind?: ClientKind | undefined // undefined until a node has answered
}

// recognise asks a node for the fingerprint of the pasted text, and remembers the text for later requests.
export async function recognise(name: ClientName): Promise<ClientInfo> {
  const info = await api.client(name)
  if (!('client' in name)) pasted.set(info.fingerprint, name)
  return info
}

// nameOf returns the name of a client for the body of a request.
export const nameOf = (fingerprint: string): ClientName => pasted.get(fingerprint) ?? { client: fingerprint }

export const isPasted = (fingerprint: string) => pasted.has(fingerprint)

// Entry names a client in a list or in an override.
export type Entry = { key: string } | { client: string }

export function entryOf(fingerprint: string): Entry {
  const name = nameOf(fingerprint)
  if ('client' in name || 'key' in name) return name
  return 'ip' in name ? { key: name.ip } : { client: fingerprint }
}

export type Pasted = { rule: string } | { ip: string } | { key: string } | { client: string }

// readPaste finds out what the user pasted in place of a key: the body of a refusal, its header that names the rule, an
// IP address, a fingerprint, or a key.
export function readPaste(text: string): Pasted | null {
  text = text.trim()
  if (!text) return null
  if (text.startsWith('{')) {
    const rule = /"rule"\s*:\s*"([a-z0-9_-]{1,64})"/.exec(text)
    if (rule) return { rule: rule[1]! }
  }
  const header = /^x-ratelimit-rule:\s*([a-z0-9_-]{1,64})\s*$/im.exec(text)
  if (header) return { rule: header[1]! }
  const bearer = /^(?:authorization:\s*)?bearer\s+(\S+)$/i.exec(text) ?? /^x-api-key:\s*(\S+)$/i.exec(text)
  if (bearer) return { key: bearer[1]! }
  if (isAddress(text)) return { ip: text }
  if (/^[0-9a-f]{8}$/.test(text)) return { client: text }
  return { key: text }
}

// openPasted calls recognise with the result of readPaste. If the text looks like a fingerprint, but the nodes don't
// know it, it may be a key.
export const openPasted = (p: Exclude<Pasted, { rule: string }>) =>
  recognise(p).catch((e) => ('client' in p && asError(e).status === 404 ? recognise({ key: p.client }) : Promise.reject(e)))

export function isAddress(text: string): boolean {
  if (/^\d{1,3}(\.\d{1,3}){3}$/.test(text)) return text.split('.').every((n) => Number(n) < 256)
  return /^[0-9a-f:]*:[0-9a-f:]*$/i.test(text) && text.length > 2 && text.includes(':', text.indexOf(':') + 1)
}

// mask shows the beginning and the end of a key, as the nodes do: at most a third of it, and at least 12 characters
// stay hidden.
export function mask(key: string): string {
  const all = [...key]
  const n = all.length
  const shown = Math.max(Math.min(Math.floor(n / 3), n - 12, 12), Math.min(Math.floor(n / 6), 2))
  const tail = Math.floor(shown / 3)
  return `${all.slice(0, shown - tail).join('')}…${tail ? all.slice(-tail).join('') : ''}`
}

// maskIn returns the mask in an address, to show until a node has answered. It accepts only a mask or an IP address,
// and no other text that somebody may have put into a link.
export function maskIn(query: URLSearchParams): string {
  const as = query.get('as') ?? ''
  return /^\S{0,12}…\S{0,4}$/.test(as) || isAddress(as.replace(/\/\d+$/, '')) ? as : ''
}

// maskEntry masks an entry of a list if it is a key. Addresses, ranges and patterns aren't secret.
export const maskEntry = (entry: string) => (entry.includes('*') || isAddress(entry.replace(/\/\d+$/, '')) ? entry : mask(entry))

// widerEntry returns why a client can't be removed from a list by itself: its entry is a pattern or a range that covers
// others, too.
export const widerEntry = (entry: string) => (entry.includes('*') || /\/\d+$/.test(entry) ? `The entry ${entry} covers others, too. Keys has the lists: take it off there.` : '')

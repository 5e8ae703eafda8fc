// Who is logged in, and which actions they may take.
import { createContext } from 'preact'
import { useContext } from 'preact/hooks'
import type { Session } from './wire'

export const SessionContext = createContext<Session | null>(null)
export const useSession = () => useContext(SessionContext)

// useMay returns why the user may not do something, or '' if they may. 'operate' covers counters, 'rules' covers
// changes of the rules.
export function useMay(what: 'operate' | 'rules'): string {
  const s = useSession()
  if (!s) return 'You are not logged in.'
  if (s.role === 'read') return 'Your token may only read. Log in with one that may operate.'
  if (what === 'rules' && s.rules_in_file) return `The rules come from ${s.rules_in_file}. Change them there.`
  return ''
}

// A session consists of a cookie, which no script can read, and this proof, which each request sends in a header.
// Browsers send the cookie to every port of the host. The proof is in storage that only this origin, with its port, can
// read. All tabs share it.
const kept = 'weir-session'
let unkept: string | null = null // if the browser doesn't allow storage, the proof lasts as long as the page

export function proof(): string | null {
  try {
    return localStorage.getItem(kept) ?? unkept
  } catch {
    return unkept
  }
}

export function setProof(p: string | null) {
  unkept = p
  try {
    if (p === null) localStorage.removeItem(kept)
    else localStorage.setItem(kept, p)
  } catch {
    // See above.
  }
}

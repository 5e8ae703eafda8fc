// Who is logged in, and what they may do.
import { createContext } from 'preact'
import { useContext } from 'preact/hooks'
import type { Session } from './wire'

export const SessionContext = createContext<Session | null>(null)
export const useSession = () => useContext(SessionContext)

// useMay says why an action isn't possible, or '' if it is: operate for counters, rules for writes of the rules.
export function useMay(what: 'operate' | 'rules'): string {
  const s = useSession()
  if (!s) return 'You are not logged in.'
  if (s.role === 'read') return 'Your token may only read. Log in with one that may operate.'
  if (what === 'rules' && s.rules_in_file) return `The rules come from ${s.rules_in_file}. Change them there.`
  return ''
}

// A session is a cookie, which no script can read, and this proof, which goes with each request as a header. Browsers send the cookie
// to every port of the host; what one origin keeps, ports included, no other can read. All tabs share it.
const kept = 'weir-session'
let unkept: string | null = null // in a browser that keeps nothing it lasts as long as the page

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

// A router on the history API. The address is the state: a view reads its part of the path and the query, so a user can
// send what the view shows to a colleague. Keys never get into an address; see wire.ClientName.
import { useEffect, useState } from 'preact/hooks'

export const base = '/console'

export interface Route {
  view: string // '' is the view Now
  rest: string[] // the rest of the path after the view, decoded
  query: URLSearchParams
}

export function parse(pathname: string, search: string): Route {
  const parts = pathname.replace(/^\/console\/?/, '').split('/').filter(Boolean).map(decode)
  return { view: parts[0] ?? '', rest: parts.slice(1), query: new URLSearchParams(search) }
}

function decode(s: string): string {
  try {
    return decodeURIComponent(s)
  } catch {
    return s
  }
}

// to returns an address of the console: to('keys', fingerprint), to('why', '', {rule: 'login'}).
export function to(view: string, rest = '', query: Record<string, string | undefined> = {}): string {
  const q = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) if (value) q.set(name, value)
  return `${base}/${view}${rest ? `/${encodeURIComponent(rest)}` : ''}${q.size ? `?${q}` : ''}`
}

const listeners = new Set<() => void>()
const tell = () => listeners.forEach((f) => f())

export function navigate(href: string, o: { replace?: boolean } = {}) {
  if (o.replace) history.replaceState(null, '', href)
  else history.pushState(null, '', href)
  tell()
  if (!o.replace) scrollTo(0, 0)
}

export function useRoute(): Route {
  const [, again] = useState(0)
  useEffect(() => {
    const f = () => again((n) => n + 1)
    listeners.add(f)
    return () => void listeners.delete(f)
  }, [])
  return parse(location.pathname, location.search)
}

// useQuery returns a piece of state that is stored in the address, unless it has its initial value.
export function useQuery<T extends string = string>(name: string, first: NoInfer<T>): [T, (value: T) => void] {
  const { query } = useRoute()
  const set = (value: T) => {
    const q = new URLSearchParams(location.search)
    if (value === first) q.delete(name)
    else q.set(name, value)
    navigate(location.pathname + (q.size ? `?${q}` : ''), { replace: true })
  }
  return [(query.get(name) as T | null) ?? first, set]
}

// startRouter makes links within the console, and the browser's back button, change the view without loading a page.
export function startRouter() {
  addEventListener('popstate', tell)
  document.addEventListener('click', (e) => {
    if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return
    const a = (e.target as Element).closest?.('a')
    if (!a || a.target || a.hasAttribute('download') || a.origin !== location.origin) return
    if (a.hash && a.pathname === location.pathname) return // a link to an anchor on this page
    if (a.pathname !== base && !a.pathname.startsWith(`${base}/`)) return
    e.preventDefault()
    navigate(a.pathname + a.search + a.hash)
  })
}

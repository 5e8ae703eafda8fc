import { base, to } from '../../router'

// next is where to go after a login. Anybody can write an address with a next in it, so only the console's own count.
export function next(asked: string | null, origin: string): string {
  if (!asked?.startsWith(`${base}/`)) return to('')
  const url = new URL(asked, origin)
  return url.origin === origin && url.pathname.startsWith(`${base}/`) ? url.pathname + url.search : to('')
}

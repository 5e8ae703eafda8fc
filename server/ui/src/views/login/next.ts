import { base, to } from '../../router'

// next returns where to go after a login. Anybody can craft a link with a `next` parameter, so only addresses of the
// console are accepted.
export function next(asked: string | null, origin: string): string {
  if (!asked?.startsWith(`${base}/`)) return to('')
  const url = new URL(asked, origin)
  return url.origin === origin && url.pathname.startsWith(`${base}/`) ? url.pathname + url.search : to('')
}

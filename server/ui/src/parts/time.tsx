import { useEffect, useState } from 'preact/hooks'
import { nodeTime } from '../clock'
import { ago, full } from '../format'

// One clock for all times on the page, so that they change together.
const listeners = new Set<() => void>()
let timer = 0

export function useSecond(): number {
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    const f = () => setNow(Date.now())
    listeners.add(f)
    if (!timer) timer = window.setInterval(() => listeners.forEach((g) => g()), 1000)
    return () => {
      listeners.delete(f)
      if (!listeners.size) timer = (clearInterval(timer), 0)
    }
  }, [])
  return now
}

// Time shows a time relative to the node's clock, with the full date as its tooltip. If there is no time, it shows
// `none`.
export function Time({ at, none = 'never' }: { at: string | null | undefined; none?: string }) {
  const now = useSecond()
  if (!at) return <span class="muted">{none}</span>
  return (
    <time class="num" dateTime={at} title={full(at)}>
      {ago(Date.parse(at), nodeTime(now))}
    </time>
  )
}

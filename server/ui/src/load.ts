// Loading and polling. Only the response to the latest request is used, and the old data stays on screen until the next
// arrives.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks'
import { ApiError } from './api'

export interface Loaded<T> {
  data: T | undefined
  error: ApiError | undefined // of the last request; data is then from an earlier one
  loading: boolean // there is no response yet
  at: number // when data arrived, in ms
  reload: () => void
}

export const asError = (e: unknown) => (e instanceof ApiError ? e : new ApiError(0, 'BUG', e instanceof Error ? e.message : String(e)))

// useLoad requests once, and again when deps change. A change of deps drops the old data.
export function useLoad<T>(ask: (signal: AbortSignal) => Promise<T>, deps: readonly unknown[]): Loaded<T> {
  return usePoll(ask, 0, deps)
}

// usePoll requests every `ms`, counted from the response, but not while the page is hidden.
export function usePoll<T>(ask: (signal: AbortSignal) => Promise<T>, ms: number, deps: readonly unknown[]): Loaded<T> {
  const [state, setState] = useState<{ data?: T; error?: ApiError; at: number }>({ at: 0 })
  const asking = useRef(ask)
  asking.current = ask
  const every = useRef(ms)
  every.current = ms // the interval may change without a restart
  const kick = useRef(() => {})

  useEffect(() => {
    const end = new AbortController()
    let timer = 0
    let busy = false
    let again = false // another load was requested while one was in flight, whose response may be outdated
    const once = async () => {
      clearTimeout(timer)
      if (busy) {
        again = true
        return
      }
      busy = true
      again = false
      try {
        const data = await asking.current(end.signal)
        if (!end.signal.aborted) setState({ data, at: Date.now() })
      } catch (e) {
        if (!end.signal.aborted) setState((s) => ({ ...s, error: asError(e) }))
      }
      busy = false
      if (again && !end.signal.aborted) return void once()
      if (every.current && !end.signal.aborted && !document.hidden) timer = window.setTimeout(once, every.current)
    }
    const shown = () => void (every.current && !document.hidden && once())
    kick.current = once
    setState({ at: 0 })
    void once()
    document.addEventListener('visibilitychange', shown)
    return () => {
      end.abort()
      clearTimeout(timer)
      document.removeEventListener('visibilitychange', shown)
    }
  }, deps)

  const reload = useCallback(() => kick.current(), [])
  return { data: state.data, error: state.error, loading: state.data === undefined && !state.error, at: state.at, reload }
}

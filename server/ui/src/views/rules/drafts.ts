// What was typed and isn't applied yet. It outlives a change of the view and a login, and is kept in memory alone: rules have keys in them.
import { useEffect, useState } from 'preact/hooks'

export interface Draft<Base> {
  base: Base // what the text began as
  text: string
}

const drafts = new Map<string, Draft<unknown>>()

addEventListener('beforeunload', (e) => {
  if (drafts.size) e.preventDefault()
})

// useDraft is the draft of a name; undefined drops it.
export function useDraft<Base>(name: string): [Draft<Base> | undefined, (d: Draft<Base> | undefined) => void] {
  const [, again] = useState(0)
  const set = (d: Draft<Base> | undefined) => {
    if (d) drafts.set(name, d)
    else drafts.delete(name)
    again((n) => n + 1)
  }
  return [drafts.get(name) as Draft<Base> | undefined, set]
}

export interface Checked<T> {
  text: string // that was looked at
  value?: T
  error?: unknown
}

// useCheck asks about a text when nobody has typed for a moment. What it says is of the text that it names.
export function useCheck<T>(text: string | undefined, ask: (text: string, signal: AbortSignal) => Promise<T>): Checked<T> | undefined {
  const [checked, set] = useState<Checked<T>>()
  useEffect(() => {
    if (text === undefined) return set(undefined)
    const end = new AbortController()
    const timer = window.setTimeout(() => {
      ask(text, end.signal).then(
        (value) => !end.signal.aborted && set({ text, value }),
        (error: unknown) => !end.signal.aborted && set({ text, error }),
      )
    }, 250)
    return () => {
      clearTimeout(timer)
      end.abort()
    }
  }, [text])
  return checked
}

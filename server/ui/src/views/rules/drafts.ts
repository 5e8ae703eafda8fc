// Text that the user has typed but not applied. It survives a change of view and a login, and is kept only in memory,
// because rules may contain keys.
import { useEffect, useState } from 'preact/hooks'

export interface Draft<Base> {
  base: Base // the version on which the draft is based
  text: string
}

const drafts = new Map<string, Draft<unknown>>()

addEventListener('beforeunload', (e) => {
  if (drafts.size) e.preventDefault()
})

// useDraft returns the draft with a name, and a function to set it. Setting it to undefined drops it.
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
  text: string // the text that was checked
  value?: T
  error?: unknown
}

// useCheck checks a text when the user has stopped typing for a moment. The result names the text that it is about.
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

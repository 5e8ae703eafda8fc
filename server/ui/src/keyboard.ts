// Keys of the whole console and of the view that is open. A key is one character, a name such as
// Enter, or two characters after each other: 'g w'. Characters can be switched off: who speaks to a
// computer, or hits keys by mistake, would set off a row of them with a word.
import { useEffect, useRef, useState } from 'preact/hooks'

export interface Binding {
  keys: string
  says: string // what it does, for the help
  run: () => void
}

const stack: { current: Binding[] }[] = []

const kept = 'weir-keys'
let on = true

// useLetters is whether keys that are characters do something, and the switch for that. It is kept in localStorage.
export function useLetters(): [boolean, (on: boolean) => void] {
  const [, again] = useState(0)
  const set = (now: boolean) => {
    on = now
    try {
      if (now) localStorage.removeItem(kept)
      else localStorage.setItem(kept, 'off')
    } catch {
      // A browser that keeps nothing has them off until the page is closed.
    }
    again((n) => n + 1)
  }
  return [on, set]
}

// bindings that hold now, for the help.
export const bindings = () => stack.flatMap((s) => s.current)

export function useKeys(list: Binding[]) {
  const ref = useRef(list)
  ref.current = list
  useEffect(() => {
    stack.push(ref)
    return () => void stack.splice(stack.indexOf(ref), 1)
  }, [])
}

const typing = (e: KeyboardEvent) => {
  const t = e.composedPath()[0] as HTMLElement // within a shadow root, too
  return t.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(t.tagName)
}

export function startKeyboard() {
  let first = ''
  let timer = 0
  try {
    on = localStorage.getItem(kept) !== 'off'
  } catch {
    // It is on, then.
  }
  addEventListener('keydown', (e) => {
    if (e.defaultPrevented || e.isComposing || e.metaKey || e.ctrlKey || e.altKey || e.key === 'Shift' || typing(e)) return
    if (document.querySelector('dialog[open]') || (!on && e.key.length === 1)) return
    const pressed = [...(first ? [`${first} ${e.key}`] : []), e.key] // the first of them that does something
    first = ''
    clearTimeout(timer)
    const all = bindings()
    // A button or a link that has the focus keeps its own Enter and Space.
    if ((e.key === 'Enter' || e.key === ' ') && (e.target as Element).closest('a,button,summary')) return
    const hit = pressed.map((keys) => all.findLast((b) => b.keys === keys)).find(Boolean)
    if (hit) {
      e.preventDefault()
      hit.run()
    } else if (all.some((b) => b.keys.startsWith(`${e.key} `))) {
      first = e.key
      timer = window.setTimeout(() => (first = ''), 1500)
    }
  })
}

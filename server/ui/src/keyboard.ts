// Keyboard shortcuts of the whole console and of the open view. A shortcut is one character, a name such as Enter, or
// two characters in sequence: 'g w'. Shortcuts that are characters can be switched off, because people who use speech
// input, or hit keys by mistake, would trigger several of them with one word.
import { useEffect, useRef, useState } from 'preact/hooks'

export interface Binding {
  keys: string
  says: string // what it does, for the help dialog
  run: () => void
}

const stack: { current: Binding[] }[] = []

const kept = 'weir-keys'
let on = true

// useLetters returns whether shortcuts that are characters are on, and a function to switch them. The setting is kept
// in localStorage.
export function useLetters(): [boolean, (on: boolean) => void] {
  const [, again] = useState(0)
  const set = (now: boolean) => {
    on = now
    try {
      if (now) localStorage.removeItem(kept)
      else localStorage.setItem(kept, 'off')
    } catch {
      // If the browser doesn't allow storage, they stay off until the page is closed.
    }
    again((n) => n + 1)
  }
  return [on, set]
}

// bindings returns the shortcuts that are active now, for the help dialog.
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
  const t = e.composedPath()[0] as HTMLElement // the actual target, even within a shadow root
  return t.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(t.tagName)
}

export function startKeyboard() {
  let first = ''
  let timer = 0
  try {
    on = localStorage.getItem(kept) !== 'off'
  } catch {
    // If the browser doesn't allow storage, shortcuts are on.
  }
  addEventListener('keydown', (e) => {
    if (e.defaultPrevented || e.isComposing || e.metaKey || e.ctrlKey || e.altKey || e.key === 'Shift' || typing(e)) return
    if (document.querySelector('dialog[open]') || (!on && e.key.length === 1)) return
    const pressed = [...(first ? [`${first} ${e.key}`] : []), e.key] // possible shortcuts; the first that has an action is used
    first = ''
    clearTimeout(timer)
    const all = bindings()
    // If a button or a link has the focus, Enter and Space keep their usual meaning.
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

import { useEffect, useState } from 'preact/hooks'
import { ApiError } from '../api'
import { Icon } from './icon'

export interface Toast {
  text: string
  tone?: 'ok' | 'bad' // a bad toast stays until it is dismissed
}

interface Item extends Toast {
  id: number
  until: number // in ms; Infinity if the toast stays
}

const most = 4
let items: Item[] = []
let last = 0
let held = false // the user is reading: the pointer or the focus is on a toast
let timer = 0
const listeners = new Set<() => void>()

function change(next: Item[]) {
  items = next
  listeners.forEach((f) => f())
  clearTimeout(timer)
  const first = Math.min(...items.map((t) => t.until))
  if (!held && first < Infinity) timer = window.setTimeout(() => change(items.filter((t) => t.until > Date.now())), first - Date.now() + 1)
}

function drop(id: number) {
  hold(false) // removing a button that has the focus fires no focusout event
  change(items.filter((t) => t.id !== id))
}

// hold stops the timers of all toasts. When they continue, each toast stays for at least five more seconds.
function hold(on: boolean) {
  if (on === held) return
  held = on
  change(on ? items : items.map((t) => ({ ...t, until: Math.max(t.until, Date.now() + 5000) })))
}

// toast shows a message about a completed action in a corner for a few seconds.
export function toast(t: Toast) {
  const next = [...items.filter((o) => o.text !== t.text), { ...t, id: ++last, until: t.tone === 'bad' ? Infinity : Date.now() + 8000 }]
  // If there are too many toasts, errors are dropped last.
  if (next.length > most) next.splice(Math.max(0, next.slice(0, -1).findIndex((o) => o.tone !== 'bad')), 1)
  change(next)
}

// fail shows the error of an action, in the server's own words.
export const fail = (e: unknown) => toast({ tone: 'bad', text: e instanceof ApiError || e instanceof Error ? e.message : String(e) })

// Toasts is part of the page and of each dialog, because text outside of an open dialog can be neither read nor
// clicked.
export function Toasts() {
  const [, again] = useState(0)
  useEffect(() => {
    const f = () => again((n) => n + 1)
    listeners.add(f)
    return () => {
      listeners.delete(f)
      hold(false)
    }
  }, [])
  return (
    <div class="toasts" role="status" aria-live="polite" onMouseEnter={() => hold(true)} onMouseLeave={() => hold(false)} onFocusIn={() => hold(true)} onFocusOut={() => hold(false)}>
      {items.map((t) => (
        <div key={t.id} class={`toast ${t.tone ?? ''}`}>
          <p>{t.text}</p>
          <button type="button" aria-label="Dismiss" onClick={() => drop(t.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  )
}

import { useEffect, useState } from 'preact/hooks'
import { ApiError } from '../api'
import { Icon } from './icon'

export interface Toast {
  text: string
  tone?: 'ok' | 'bad' // a bad one stays until it is dismissed
}

interface Item extends Toast {
  id: number
  until: number // in ms; Infinity for what stays
}

const most = 4
let items: Item[] = []
let last = 0
let held = false // somebody reads: the pointer or the focus is on one
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
  hold(false) // a button that goes away never loses the focus
  change(items.filter((t) => t.id !== id))
}

// hold stops the time of all toasts; when it goes on, each has five seconds at least.
function hold(on: boolean) {
  if (on === held) return
  held = on
  change(on ? items : items.map((t) => ({ ...t, until: Math.max(t.until, Date.now() + 5000) })))
}

// toast tells of what has been done, in a corner, for some seconds.
export function toast(t: Toast) {
  const next = [...items.filter((o) => o.text !== t.text), { ...t, id: ++last, until: t.tone === 'bad' ? Infinity : Date.now() + 8000 }]
  // Errors are the last to make room.
  if (next.length > most) next.splice(Math.max(0, next.slice(0, -1).findIndex((o) => o.tone !== 'bad')), 1)
  change(next)
}

// fail tells of an action's error, in the server's own words.
export const fail = (e: unknown) => toast({ tone: 'bad', text: e instanceof ApiError || e instanceof Error ? e.message : String(e) })

// Toasts are in the page, and in each dialog: what is outside of an open one can be neither read nor clicked.
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

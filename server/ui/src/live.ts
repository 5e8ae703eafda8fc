// The node's own numbers, requested once for everything that shows them: every second if any part of the page needs
// that, and every five seconds otherwise.
import { useEffect, useState } from 'preact/hooks'
import * as api from './api'
import { heard } from './clock'
import { asError } from './load'
import type { Now } from './wire'

export interface Live {
  data?: Now
  at: number // the time of data in ms, by the node's clock
  error?: api.ApiError // the error of the last request
}

let live: Live = { at: 0 }
let timer = 0
let asking = false
const watchers = new Set<{ ms: number; tell: () => void }>()

async function ask() {
  clearTimeout(timer)
  if (asking || !watchers.size || document.hidden) return
  asking = true
  try {
    const data = await api.now()
    heard(data.at)
    live = { data, at: Date.parse(data.at) }
  } catch (e) {
    live = { ...live, error: asError(e) }
  }
  asking = false
  watchers.forEach((w) => w.tell())
  if (watchers.size) timer = window.setTimeout(ask, Math.min(...[...watchers].map((w) => w.ms)))
}
document.addEventListener('visibilitychange', () => void ask())

export function useLive(ms: number): Live & { reload: () => void } {
  const [, again] = useState(0)
  useEffect(() => {
    const w = { ms, tell: () => again((n) => n + 1) }
    watchers.add(w)
    void ask()
    return () => void watchers.delete(w)
  }, [ms])
  return { ...live, reload: () => void ask() }
}

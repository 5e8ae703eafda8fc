// Decisions as they come. What arrives while somebody reads is kept and counted, and shown when they go on.
import type { Decision } from '../../wire'

export interface Row extends Decision {
  id: string // in the order of arrival
}

export const kept = 500

export class Buffer {
  private last = 0
  private waiting: Row[] = []
  rows: Row[] = [] // newest first
  missed = 0 // of those that waited: too many to keep

  get waits(): number {
    return this.waiting.length + this.missed
  }

  add(d: Decision) {
    this.waiting.push({ ...d, id: String(++this.last) })
    if (this.waiting.length > kept) {
      this.waiting.shift()
      this.missed++
    }
  }

  // show moves what waits to the rows, and reports whether there was something.
  show(): boolean {
    if (!this.waiting.length) return false
    this.rows = [...this.waiting.reverse(), ...this.rows].slice(0, kept)
    this.waiting = []
    this.missed = 0
    return true
  }

  clear() {
    this.waiting = []
    this.rows = []
    this.missed = 0
  }
}

// Decisions as they arrive. While the user reads, new ones are kept and counted, and shown when the user continues.
import type { Decision } from '../../wire'

export interface Row extends Decision {
  id: string // numbered in the order of arrival
}

export const kept = 500

export class Buffer {
  private last = 0
  private waiting: Row[] = []
  rows: Row[] = [] // newest first
  missed = 0 // how many waiting decisions were dropped because there were too many

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

  // show moves the waiting decisions to the rows, and reports whether there were any.
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

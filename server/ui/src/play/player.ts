// The player advances the engine's clock, and keeps the frames that the engine returns, for drawing.
import { viewAt, type View } from './time'
import { call, type Counts, type Demo, type Frame, type LaneInfo, type Scene } from './engine'

export interface Lane {
  info: LaneInfo
  marks: number[]
  points: number[]
  value: number
  base: number
  text: string
  from: number
  counts: Counts
}

const none: Counts = { sent: 0, admitted: 0, refused: 0, delayed: 0, peak: 0, waiting: 0 }

const emptyLane = (info: LaneInfo): Lane => ({ info, marks: [], points: [], value: 0, base: 0, text: '', from: 0, counts: none })

function append(to: number[], from: Float64Array) {
  for (const n of from) to.push(n)
}

export const speeds = [0.1, 0.25, 0.5, 1, 2, 5, 10]

export class Player {
  lanes: Lane[] = []
  whole: Lane = emptyLane({ id: 'all', algorithm: '', limit: '', rule: '', shadow: false, max: 0, window: 0, offset: -1 })
  arrivals: number[] = []
  coming: Float64Array = new Float64Array()
  span = 1
  now = 0
  reach = 0 // the latest time that was shown
  speed = 1
  playing = false
  text = ''
  done = false
  full = ''
  demo: Demo | undefined
  pattern = ''
  private held = false // the user stopped the clock, so that sending doesn't start it
  private last = 0
  private told = 0
  private pending: number | undefined // the time to which the user drags the clock
  private drawers = new Set<() => void>()
  private listeners = new Set<() => void>()

  constructor() {
    const tick = (time: number) => {
      this.tick(time)
      requestAnimationFrame(tick)
    }
    requestAnimationFrame(tick)
  }

  // view returns the visible time span: a whole demonstration, or else the time around now.
  view(): View {
    if (!this.demo) return viewAt(this.now, this.span)
    const span = (this.demo.until - this.demo.from) * 1.1
    return { from: this.demo.from - span * 0.02, span, now: this.now }
  }

  // onDraw calls f once per frame while something changes. onChange does so at most ten times a second, for text.
  onDraw(f: () => void) {
    this.drawers.add(f)
    f()
    return () => void this.drawers.delete(f)
  }
  onChange(f: () => void) {
    this.listeners.add(f)
    return () => void this.listeners.delete(f)
  }
  draw() {
    this.drawers.forEach((f) => f())
  }
  private tell() {
    this.told = performance.now()
    this.listeners.forEach((f) => f())
  }

  private tick(time: number) {
    // A page that was in the background doesn't catch up on the time it missed.
    const passed = Math.min(time - this.last, 100)
    this.last = time
    if (this.pending !== undefined) {
      this.absorb(call('advance', { to: this.pending }))
      this.pending = undefined
      this.tell()
      return
    }
    if (!this.playing) return
    const end = this.demo && !this.done ? this.demo.until : Infinity
    const to = Math.min(this.now + passed * 1000 * this.speed, end)
    this.absorb(call('advance', { to }))
    const idle = !this.pattern && !this.coming.length && to > (this.arrivals.at(-1) ?? 0) + this.span
    if (to === end || idle || this.full) {
      this.playing = false
      this.tell()
    } else if (time - this.told > 100) this.tell()
  }

  private absorb(f: Frame) {
    if (f.fresh) {
      this.arrivals = []
      for (const l of [...this.lanes, this.whole]) [l.marks, l.points] = [[], []]
    }
    append(this.arrivals, f.arrivals)
    for (const [i, from] of [...f.lanes, f.whole].entries()) {
      const l = this.lanes[i] ?? this.whole
      append(l.marks, from.marks)
      append(l.points, from.points)
      ;[l.value, l.base, l.text, l.from, l.counts] = [from.value, from.base, from.text, from.from, from]
    }
    ;[this.now, this.coming, this.text, this.done, this.full] = [f.at, f.coming, f.text, f.done, f.full]
    this.reach = Math.max(this.reach, this.now, f.coming.at(-1) ?? 0)
    this.draw()
  }

  // open switches to another set of lanes.
  open(s: Scene) {
    this.lanes = s.lanes.map(emptyLane)
    this.span = s.span
    this.refresh()
  }
  private refresh() {
    this.absorb(call('advance', { to: this.now }))
    this.tell()
  }

  play() {
    this.held = false
    this.playing = true
    if (this.done) this.demo = undefined // after a demonstration, the clock continues from its end
    this.tell()
  }
  pause() {
    this.held = true
    this.playing = false
    this.tell()
  }
  toggle() {
    if (this.playing) this.pause()
    else this.play()
  }
  step(method: 'step' | 'back') {
    this.pause()
    this.absorb(call(method, {}))
    this.tell()
  }
  seek(to: number) {
    this.pause()
    this.pending = to
  }
  setSpeed(n: number) {
    this.speed = n
    this.tell()
  }

  send(count: number, over: number) {
    call('send', { count, over })
    this.begin()
  }
  start(kind: string, rate: number) {
    call('pattern', { kind, rate })
    this.pattern = kind
    this.begin()
  }
  private begin() {
    this.demo = undefined
    if (!this.held) this.playing = true
    this.refresh()
  }
  stop() {
    call('stop', {})
    this.pattern = ''
    this.refresh()
  }
  clear() {
    call('clear', {})
    ;[this.playing, this.held, this.pattern, this.demo] = [false, false, '', undefined]
    this.now = this.reach = 0
    this.refresh()
  }

  // show plays a demonstration within a few seconds, or shows its end at once for users who prefer reduced motion.
  show(id: string) {
    this.clear()
    const d = call('show', { id })
    this.demo = d
    this.now = d.from
    this.reach = d.until
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) this.now = d.until
    else {
      const seconds = (d.until - d.from) / 1e6
      this.speed = speeds.find((s) => seconds / s <= 7) ?? seconds / 7
      this.playing = true
    }
    this.refresh()
  }
}

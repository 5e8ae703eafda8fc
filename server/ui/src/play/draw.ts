// Draws a lane, or the axis with the arrivals, on a canvas. All values come from the engine; this file gives them a
// position, a color and a shape.
import { color } from '../theme'
import type { Lane } from './player'
import { first, ticks, type View } from './time'

export type Palette = ReturnType<typeof palette>

export const palette = () => ({
  text: color('--text'),
  muted: color('--muted'),
  line: color('--line'),
  strong: color('--line-strong'),
  accent: color('--accent'),
  soft: color('--accent-soft'),
  sunken: color('--sunken'),
  surface: color('--surface'),
  ok: color('--ok'),
  warn: color('--warn'),
  bad: color('--bad'),
})

// Verdicts, with the numbers that the engine uses.
const refused = 0
const admitted = 1
const delayed = 2

// Vertical positions of the rows of marks. A queue has one more row, for requests that leave it.
const admittedAt = 10
const leavesAt = 36
const refusedAt = (lane: Lane) => (isQueue(lane) ? 51 : 24)
const isQueue = (lane: Lane) => lane.info.algorithm === 'leaky_queue'
const font = '11px system-ui, sans-serif'
const bold = '600 11px system-ui, sans-serif'

// prepare sets the canvas to the screen's resolution, and returns the function that maps times to positions.
function prepare(c: HTMLCanvasElement, v: View) {
  const [w, h, fine] = [c.clientWidth, c.clientHeight, devicePixelRatio || 1]
  if (c.width !== Math.round(w * fine) || c.height !== Math.round(h * fine)) {
    c.width = Math.round(w * fine)
    c.height = Math.round(h * fine)
  }
  const g = c.getContext('2d')!
  g.setTransform(fine, 0, 0, fine, 0, 0)
  g.clearRect(0, 0, w, h)
  g.font = font
  g.lineJoin = 'round'
  return { g, w, h, x: (t: number) => ((t - v.from) / v.span) * w }
}

function upright(g: CanvasRenderingContext2D, x: number, from: number, to: number) {
  const at = Math.round(x) + 0.5
  g.moveTo(at, from)
  g.lineTo(at, to)
}

export function drawAxis(c: HTMLCanvasElement, v: View, arrivals: number[], coming: Float64Array, p: Palette) {
  const { g, w, h, x } = prepare(c, v)
  g.fillStyle = p.muted
  g.strokeStyle = p.line
  g.beginPath()
  for (const t of ticks(v, w)) {
    upright(g, x(t.at), 16, h)
    const half = g.measureText(t.text).width / 2
    g.textAlign = 'center'
    g.fillText(t.text, Math.min(Math.max(x(t.at), half), w - half), 11)
  }
  g.stroke()
  g.strokeStyle = p.text
  g.lineWidth = 1.5
  g.beginPath()
  for (let i = first(arrivals, 1, v.from), before = -1; i < arrivals.length; i++) {
    const at = Math.round(x(arrivals[i]!))
    if (at !== before) upright(g, at, 22, h - 3)
    before = at
  }
  g.stroke()
  // Future arrivals are dotted.
  g.strokeStyle = p.strong
  g.lineWidth = 1
  g.setLineDash([2, 2])
  g.beginPath()
  for (const t of coming) upright(g, x(t), 22, h - 3)
  g.stroke()
  g.setLineDash([])
  nowLine(g, x(v.now), 16, h, p)
}

function nowLine(g: CanvasRenderingContext2D, x: number, from: number, to: number, p: Palette) {
  g.strokeStyle = p.accent
  g.lineWidth = 1.5
  g.beginPath()
  upright(g, x, from, to)
  g.stroke()
}

export function drawLane(c: HTMLCanvasElement, v: View, lane: Lane, arrivals: number[], p: Palette, plain = false) {
  const { g, w, h, x } = prepare(c, v)
  const top = refusedAt(lane) + 10
  const now = x(v.now)
  background(g, lane, v, x, w, h, p)
  if (!plain) level(g, lane, v, x, top, h - 2, p)
  g.fillStyle = p.sunken // the future
  g.globalAlpha = 0.55
  g.fillRect(now, 0, w - now, h)
  g.globalAlpha = 1
  if (isQueue(lane)) leaving(g, lane, v, arrivals, x, p)
  marks(g, lane, v, arrivals, x, p, w)
  nowLine(g, now, 0, h, p)
}

// background shows where windows begin, and the time span whose requests count now.
function background(g: CanvasRenderingContext2D, lane: Lane, v: View, x: (t: number) => number, w: number, h: number, p: Palette) {
  const { offset, window } = lane.info
  if (lane.from < v.now && (offset >= 0 || lane.info.algorithm === 'sliding_window_log')) {
    g.fillStyle = p.soft
    g.globalAlpha = 0.6
    const from = Math.max(0, x(lane.from))
    g.fillRect(from, 0, x(v.now) - from, refusedAt(lane) + 8)
    g.globalAlpha = 1
  }
  g.strokeStyle = p.line
  g.lineWidth = 1
  g.beginPath()
  for (const t of ticks(v, w)) upright(g, x(t.at), 0, h)
  g.stroke()
  if (offset < 0) return
  g.strokeStyle = p.strong
  g.setLineDash([4, 3])
  g.beginPath()
  if (v.span / window < 200) for (let i = Math.max(0, Math.ceil((v.from - offset) / window)); offset + i * window <= v.from + v.span; i++) upright(g, x(offset + i * window), 0, h)
  g.stroke()
  g.setLineDash([])
}

// level fills the area below the value. For a sliding counter, the part that comes from the previous window is drawn
// separately.
function level(g: CanvasRenderingContext2D, lane: Lane, v: View, x: (t: number) => number, top: number, bottom: number, p: Palette) {
  const { points, info } = lane
  const y = (n: number) => bottom - (Math.min(Math.max(n, 0), info.max) / info.max) * (bottom - top)
  g.strokeStyle = p.strong
  g.lineWidth = 1
  g.setLineDash([1, 3])
  g.beginPath()
  g.moveTo(0, top + 0.5)
  g.lineTo(x(v.from + v.span), top + 0.5)
  g.stroke()
  g.setLineDash([])
  const begin = Math.max(0, first(points, 3, v.from) - 1) * 3
  const area = (of: 1 | 2, last: number) => {
    const line = new Path2D()
    line.moveTo(x(points[begin]!), y(points[begin + of]!))
    // Of the points in one column of pixels, the first, highest, lowest and last are enough.
    for (let i = begin + 3; i < points.length; ) {
      const from = x(points[i]!)
      let [at, end] = [from, y(points[i + of]!)]
      let [low, high] = [end, end]
      line.lineTo(at, end)
      for (i += 3; i < points.length && x(points[i]!) - from < 1; i += 3) {
        ;[at, end] = [x(points[i]!), y(points[i + of]!)]
        low = Math.min(low, end)
        high = Math.max(high, end)
      }
      line.lineTo(at, low)
      line.lineTo(at, high)
      line.lineTo(at, end)
    }
    line.lineTo(x(v.now), y(last))
    const fill = new Path2D(line)
    fill.lineTo(x(v.now), bottom)
    fill.lineTo(x(points[begin]!), bottom)
    return { line, fill }
  }
  if (points.length) {
    const total = area(1, lane.value)
    g.fillStyle = p.accent
    g.globalAlpha = 0.22
    g.fill(total.fill)
    g.globalAlpha = 1
    if (info.algorithm === 'sliding_window_counter') {
      const base = area(2, lane.base)
      g.fillStyle = p.surface
      g.fill(base.fill)
      g.fillStyle = p.muted
      g.globalAlpha = 0.3
      g.fill(base.fill)
      g.globalAlpha = 1
      g.strokeStyle = p.muted
      g.setLineDash([3, 2])
      g.stroke(base.line)
      g.setLineDash([])
    }
    g.strokeStyle = p.accent
    g.lineWidth = 1.5
    g.stroke(total.line)
  }
  g.fillStyle = p.muted
  g.textAlign = 'left'
  g.textBaseline = 'top'
  g.fillText(String(info.max), 4, top + 4)
  g.textBaseline = 'alphabetic'
}

// Cluster is a group of requests with the same verdict that are too close together to be drawn one by one.
interface Cluster {
  at: number
  kind: number
  n: number
}

// roomOf returns the width of a cluster, in pixels.
const roomOf = (c: Cluster) => (c.n > 1 ? 13 + 7 * String(c.n).length : 9)

// clusters groups the marks from the beginning of time, so that groups stay the same while the view moves.
function clusters(lane: Lane, v: View, arrivals: number[], perPixel: number): Cluster[] {
  const out: Cluster[] = []
  const last: (Cluster | undefined)[] = []
  const { marks, info } = lane
  const until = v.from + v.span
  const windowOf = (at: number) => (info.offset < 0 ? 0 : Math.floor((at - info.offset) / info.window))
  for (let i = 0; i < marks.length; i += 3) {
    const at = arrivals[marks[i]!]!
    const kind = marks[i + 1]!
    const row = kind === refused ? 1 : 0
    const open = last[row]
    if (open?.kind === kind && at - open.at < roomOf(open) * perPixel && windowOf(at) === windowOf(open.at)) open.n++
    else if (at <= until) out.push((last[row] = { at, kind, n: 1 }))
  }
  return out
}

// marks draws each verdict with its own color and shape: a disc for admitted, a diamond for delayed, a ring for refused
// by another limit, and, a row below, a cross for refused.
function marks(g: CanvasRenderingContext2D, lane: Lane, v: View, arrivals: number[], x: (t: number) => number, p: Palette, w: number) {
  g.font = bold
  g.textAlign = 'left'
  const ends = [-99, -99] // right edge of the previous mark, for each of the two rows
  for (const c of clusters(lane, v, arrivals, v.span / w)) {
    const row = c.kind === refused ? 1 : 0
    // If the previous mark is too close, the mark moves a little, so that both are visible.
    const at = Math.min(Math.max(x(c.at), ends[row]!), x(c.at) + 10)
    ends[row] = at + roomOf(c)
    if (at < -40) continue
    const y = c.kind === refused ? refusedAt(lane) : admittedAt
    g.fillStyle = g.strokeStyle = c.kind === refused ? p.bad : c.kind === admitted ? p.ok : c.kind === delayed ? p.warn : p.muted
    g.lineWidth = 1.75
    g.beginPath()
    if (c.kind === refused) {
      g.moveTo(at - 3.5, y - 3.5)
      g.lineTo(at + 3.5, y + 3.5)
      g.moveTo(at + 3.5, y - 3.5)
      g.lineTo(at - 3.5, y + 3.5)
      g.stroke()
    } else if (c.kind === delayed) {
      g.moveTo(at, y - 5)
      g.lineTo(at + 5, y)
      g.lineTo(at, y + 5)
      g.lineTo(at - 5, y)
      g.fill()
    } else {
      g.arc(at, y, c.kind === admitted ? 4 : 3.5, 0, 7)
      if (c.kind === admitted) g.fill()
      else g.stroke()
    }
    if (c.n > 1) g.fillText(String(c.n), at + 6, y + 4)
  }
  g.font = font
}

// leaving shows when requests leave a queue, with a line from each request's arrival.
function leaving(g: CanvasRenderingContext2D, lane: Lane, v: View, arrivals: number[], x: (t: number) => number, p: Palette) {
  const ways = new Path2D()
  const gone = new Path2D()
  const waiting = new Path2D()
  let before = -9
  for (let i = 0; i < lane.marks.length; i += 3) {
    if (lane.marks[i + 1] === refused) continue
    const came = arrivals[lane.marks[i]!]!
    const leaves = came + lane.marks[i + 2]!
    const to = x(leaves)
    if (to < -8) continue
    if (to - before < 2) continue
    before = to
    ways.moveTo(x(came), admittedAt + 5)
    ways.lineTo(to, leavesAt - 4)
    const dots = leaves <= v.now ? gone : waiting
    dots.moveTo(to + 3.5, leavesAt)
    dots.arc(to, leavesAt, 3.5, 0, 7)
  }
  g.lineWidth = 1
  g.strokeStyle = p.warn
  g.globalAlpha = 0.4
  g.stroke(ways)
  g.globalAlpha = 1
  g.fillStyle = p.ok
  g.fill(gone)
  g.fillStyle = p.surface
  g.fill(waiting)
  g.strokeStyle = p.ok
  g.lineWidth = 1.5
  g.stroke(waiting)
}

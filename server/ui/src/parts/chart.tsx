import { useEffect, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { clock, short } from '../format'
import { color, useTheme } from '../theme'
import { alone, niceStep, niceTop } from './chart-scale'

export interface Line {
  label: string
  values: (number | null)[]
  token: string // the name of its color: --accent
  fill?: boolean
  dash?: boolean
}

export interface ChartProps {
  label: string // a description of the chart
  end: number // the time of the newest value, in seconds
  step: number // seconds between values
  lines: Line[]
  height?: number
  format?: (n: number) => string
}

// Chart draws lines over time. The axis counts back from now, and all sizes are fixed, so only the lines move while the
// chart is live. Unknown values leave a gap. The caption shows the time and the values under the pointer, or else the
// newest ones.
export function Chart({ label, end, step, lines, height = 160, format = short }: ChartProps) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const [at, setAt] = useState<number | null>(null)
  const { dark } = useTheme()
  const shape = lines.map((l) => `${l.label} ${l.token} ${l.fill} ${l.dash}`).join()

  const n = Math.max(1, ...lines.map((l) => l.values.length))
  const times = Array.from({ length: n }, (_, i) => (i - n + 1) * step)
  const data = [times, ...lines.map((l) => l.values)] as uPlot.AlignedData

  useEffect(() => {
    const axis = { stroke: color('--muted'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false }, font: '12px system-ui, sans-serif' }
    const u = new uPlot(
      {
        width: box.current!.clientWidth || 300,
        height,
        padding: [8, 20, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
        scales: { x: { time: false }, y: { range: (_, __, max) => [0, niceTop(max)] } },
        axes: [
          { ...axis, size: 28, gap: 8, splits: (u) => back(n * step, u.width), values: (_, s) => s.map(before) },
          { ...axis, size: 56, gap: 8, splits: (_, __, ___, max) => [0, max / 2, max], values: (_, s) => s.map((v) => (v === 0 ? '0' : format(v))) },
        ],
        series: [
          {},
          ...lines.map((l) => ({
            label: l.label,
            stroke: color(l.token),
            width: 1.5,
            ...(l.dash ? { dash: [4, 3] } : {}),
            ...(l.fill ? { fill: faint(color(l.token)) } : {}),
            points: { show: false, size: 3, filter: (u: uPlot, i: number) => alone(u.data[i]!) }, // a value between two gaps isn't part of a line, so it is drawn as a point
          })),
        ],
        hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
      },
      data,
      box.current!,
    )
    plot.current = u
    const sized = new ResizeObserver(([e]) => {
      const width = Math.floor(e!.contentRect.width)
      if (width && width !== u.width) u.setSize({ width, height })
    })
    sized.observe(box.current!)
    return () => {
      sized.disconnect()
      u.destroy()
      plot.current = null
    }
  }, [shape, height, dark, format, n, step])

  useEffect(() => plot.current?.setData(data), [end, lines])

  const shown = at ?? n - 1
  return (
    <figure class="chart">
      <div ref={box} class="chart-box" style={{ height: `${height}px` }} role="img" aria-label={describe(label, lines, format)} />
      {at !== null && <span class="chart-at num">{clock((end + times[shown]!) * 1000)}</span>}
      <figcaption>
        {lines.map((l) => (
          <span key={l.label}>
            <i class={`swatch ${l.dash ? 'dash' : ''}`} style={{ color: `var(${l.token})` }} />
            {l.label} <b class="num">{value(l.values[shown], format)}</b>
          </span>
        ))}
      </figcaption>
    </figure>
  )
}

const value = (v: number | null | undefined, format: (n: number) => string) => (v === null || v === undefined ? '–' : format(v))

const faint = (rgb: string) => rgb.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.14)')

// back returns the places of labels, counted back from now: at most one for each 90 pixels.
function back(span: number, width: number): number[] {
  const step = niceStep(span / Math.max(2, Math.floor(width / 90)))
  const at: number[] = []
  for (let t = 0; t < span; t += step) at.unshift(-t)
  return at
}

const before = (s: number) => (s === 0 ? 'now' : s % 60 ? `−${-s} s` : `−${-s / 60} min`)

const describe = (label: string, lines: Line[], format: (n: number) => string) =>
  `${label}. ${lines.map((l) => `${l.label}: ${value(l.values.at(-1), format)} now, at most ${format(Math.max(0, ...l.values.map((v) => v ?? 0)))}`).join('; ')}.`

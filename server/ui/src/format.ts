// Formats numbers and times for people, in one place, so that they look the same in every view.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })

// count: 1,234,567.
export const count = (n: number) => whole.format(n)

// decimal: 1,234.5, with at most six decimals, because amounts are kept in millionths.
const decimals = new Intl.NumberFormat('en', { maximumFractionDigits: 6 })
export const decimal = (n: number) => decimals.format(n)

// short has at most four characters besides its unit: 0.4, 12, 1.2k, 35M.
export function short(n: number): string {
  const abs = Math.abs(n)
  if (abs < 10) return trim(n.toFixed(1))
  if (abs < 1000) return n.toFixed(0) === '1000' ? '1k' : n.toFixed(0)
  for (const [unit, size] of [['k', 1e3], ['M', 1e6], ['G', 1e9], ['T', 1e12]] as const) {
    const v = n / size
    if (Math.abs(v) < 999.5) return (Math.abs(v) < 9.95 ? trim(v.toFixed(1)) : v.toFixed(0)) + unit
  }
  return n.toExponential(1)
}

const trim = (s: string) => s.replace(/\.0$/, '')

// rate formats a number per second. A rate above 0 is never shown as 0.
export const rate = (n: number) => (n > 0 && n < 0.05 ? '<0.1' : short(n))

// percent formats a share between 0 and 1. Only 1 is shown as 100%, and only 0 as 0%.
export function percent(share: number): string {
  const p = share * 100
  if (p > 0 && p < 0.1) return '<0.1%'
  if (p > 99.9 && p < 100) return '>99.9%'
  return `${trim(p.toFixed(p < 10 || (p > 99 && p < 100) ? 1 : 0))}%`
}

// micros: 84 µs, 1.2 ms, 2.5 s.
export function micros(us: number): string {
  if (us < 1000) return `${us < 10 ? trim(us.toFixed(1)) : us.toFixed(0)} µs`
  if (us < 1e6) return `${trim((us / 1e3).toFixed(us < 1e5 ? 1 : 0))} ms`
  return `${trim((us / 1e6).toFixed(1))} s`
}

// duration shows the two largest units: 350 ms, 2.5 s, 3 min 20 s, 2 h, 5 d 3 h.
export function duration(ms: number): string {
  if (ms < 0) return 'never'
  if (ms < 1000) return `${Math.round(ms)} ms`
  if (ms < 9950) return `${trim((ms / 1000).toFixed(1))} s`
  let s = Math.round(ms / 1000)
  const parts: string[] = []
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]] as const) {
    const n = Math.floor(s / size)
    s -= n * size
    if (n) parts.push(`${n} ${unit}`)
    else if (parts.length) break
    if (parts.length === 2) break
  }
  return parts.join(' ')
}

// bytes: 812 B, 3.4 MiB.
export function bytes(n: number): string {
  if (n < 1024) return `${n} B`
  for (const [unit, size] of [['KiB', 2 ** 10], ['MiB', 2 ** 20], ['GiB', 2 ** 30]] as const) {
    const v = n / size
    if (v < 1000 || unit === 'GiB') return `${v < 9.95 ? trim(v.toFixed(1)) : v.toFixed(0)} ${unit}`
  }
  return `${n} B`
}

// ago: now, 12 s ago, 3 min ago, 5 h ago, 12 d ago; or, for a time in the future, in 5 min.
export function ago(at: number, now: number): string {
  const s = Math.round((now - at) / 1000)
  if (Math.abs(s) < 2) return 'now'
  const abs = Math.abs(s)
  const text = abs < 60 ? `${abs} s` : abs < 3600 ? `${Math.floor(abs / 60)} min` : abs < 86400 ? `${Math.floor(abs / 3600)} h` : `${Math.floor(abs / 86400)} d`
  return s > 0 ? `${text} ago` : `in ${text}`
}

// clock: 14:03:07, in the browser's time zone.
const clockFormat = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })
export const clock = (at: number | string | Date) => clockFormat.format(new Date(at))

// full: 2026-01-05 14:03:07 +01:00, which can be pasted into a report.
export function full(at: number | string | Date): string {
  const d = new Date(at)
  const two = (n: number) => String(n).padStart(2, '0')
  const off = -d.getTimezoneOffset()
  const zone = off === 0 ? 'UTC' : `${off < 0 ? '-' : '+'}${two(Math.floor(Math.abs(off) / 60))}:${two(Math.abs(off) % 60)}`
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())} ${zone}`
}

// plural: 1 key, 2 keys.
export const plural = (n: number, one: string, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`

// sentence makes a sentence of an error's text, because errors of Go begin with a lowercase letter and have no period.
export function sentence(text: string): string {
  const first = /^[a-z]+[ ,]/.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text
  return /[.!?:)]$/.test(first) ? first : `${first}.`
}

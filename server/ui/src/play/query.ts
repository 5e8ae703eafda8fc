// The page's state in its address: numbers, pattern, speed, and the current demonstration. Rules and keys never go into
// the address.
import type { Pattern } from './controls'
import type { Numbers } from './engine'

export interface State {
  numbers: Numbers
  own: boolean // shows the user's rules instead of the algorithms
  show: string
  pattern: Pattern
  rate: string
  speed: number
}

export const initial: State = {
  numbers: { limit: 10, window: 10_000, burst: 10, max_delay: 0 },
  own: false,
  show: '',
  pattern: 'steady',
  rate: '1.5',
  speed: 1,
}

// parse reads an address. Missing and invalid values keep their defaults. The engine makes the final check of the
// numbers.
export function parse(search: string): State {
  const q = new URLSearchParams(search)
  const number = (name: string, first: number, unit = 1) => {
    const n = Number(q.get(name) ?? NaN)
    return Number.isFinite(n) && n >= 0 ? Math.round(n * unit) : first
  }
  const limit = number('limit', initial.numbers.limit)
  const pattern = q.get('pattern') ?? ''
  const speed = Number(q.get('speed'))
  return {
    numbers: { limit, window: number('window', initial.numbers.window, 1000), burst: number('burst', limit), max_delay: number('delay', 0, 1000) },
    own: q.get('rules') === 'own',
    show: q.get('show') ?? '',
    pattern: ['steady', 'poisson', 'onoff', 'boundary'].includes(pattern) ? (pattern as Pattern) : 'steady',
    rate: Number(q.get('rate')) > 0 ? q.get('rate')! : initial.rate,
    speed: speed >= 0.01 && speed <= 1000 ? speed : 1,
  }
}

// format writes the values that differ from their defaults.
export function format(s: State): string {
  const q = new URLSearchParams()
  const n = s.numbers
  const set = (name: string, value: string | number, first: string | number) => void (value !== first && q.set(name, String(value)))
  set('limit', n.limit, initial.numbers.limit)
  set('window', n.window / 1000, initial.numbers.window / 1000)
  set('burst', n.burst, n.limit)
  set('delay', n.max_delay / 1000, 0)
  if (s.own) q.set('rules', 'own')
  set('show', s.show, '')
  set('pattern', s.pattern, initial.pattern)
  set('rate', s.rate, initial.rate)
  set('speed', s.speed, 1)
  return q.size ? `?${q}` : ''
}

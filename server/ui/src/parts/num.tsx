import { count } from '../format'

// Num has digits of one width, so that a number that changes doesn't move what is beside it.
export function Num({ value, as = count, unit, tone }: { value: number | undefined; as?: (n: number) => string; unit?: string; tone?: 'ok' | 'warn' | 'bad' | undefined }) {
  return (
    <span class={`num ${tone ? `text-${tone}` : ''}`}>
      {value === undefined ? '–' : as(value)}
      {unit && <small> {unit}</small>}
    </span>
  )
}

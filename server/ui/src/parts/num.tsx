import { count } from '../format'

// Num draws digits of equal width, so that a number that changes doesn't move the text beside it.
export function Num({ value, as = count, unit, tone }: { value: number | undefined; as?: (n: number) => string; unit?: string; tone?: 'ok' | 'warn' | 'bad' | undefined }) {
  return (
    <span class={`num ${tone ? `text-${tone}` : ''}`}>
      {value === undefined ? '–' : as(value)}
      {unit && <small> {unit}</small>}
    </span>
  )
}

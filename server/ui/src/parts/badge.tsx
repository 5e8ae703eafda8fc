import type { ComponentChildren } from 'preact'

export type Tone = 'ok' | 'warn' | 'bad' | 'accent' | 'plain'

// Each tone has a shape as well as a color, for readers who can't tell the colors apart.
const shapes: Record<Tone, string> = {
  ok: 'M2 6.5 5 9.5 10 3',
  warn: 'M6 1.5 11 10.5H1ZM6 5v2.5M6 9v.2',
  bad: 'M2.5 2.5l7 7M9.5 2.5l-7 7',
  accent: 'M6 3a3 3 0 1 0 .01 0',
  plain: '',
}

export function Badge({ tone = 'plain', title, children }: { tone?: Tone; title?: string; children: ComponentChildren }) {
  return (
    <span class={`badge ${tone}`} title={title}>
      {shapes[tone] && (
        <svg viewBox="0 0 12 12" aria-hidden="true">
          <path d={shapes[tone]} />
        </svg>
      )}
      {children}
    </span>
  )
}

import { plural } from '../../format'
import { Badge } from '../../parts/badge'
import type { Mark } from './problems'

// CheckLine shows whether the text is valid. Screen readers announce it when it changes.
export function CheckLine({ dirty, checking, marks, elsewhere, failed }: { dirty: boolean; checking: boolean; marks: Mark[]; elsewhere: number; failed?: string }) {
  const problems = marks.filter((m) => m.kind === 'problem').length
  const warnings = marks.length - problems + elsewhere
  return (
    <p class="check-line" role="status">
      {failed ? (
        <span class="text-bad">{failed}</span>
      ) : problems ? (
        <Badge tone="bad">{plural(problems, 'problem')}</Badge>
      ) : checking ? (
        <span class="muted">Checking…</span>
      ) : !dirty ? (
        <span class="muted">As it is in force.</span>
      ) : warnings ? (
        <Badge tone="warn">{plural(warnings, 'warning')}</Badge>
      ) : (
        <Badge tone="ok">Valid</Badge>
      )}
    </p>
  )
}

// Marks lists problems and warnings. Each links to its line.
export function Marks({ marks, onJump }: { marks: Mark[]; onJump: (m: Mark) => void }) {
  if (!marks.length) return null
  return (
    <ul class="marks">
      {marks.slice(0, 50).map((m, i) => (
        <li key={i} class={m.kind}>
          <button type="button" onClick={() => onJump(m)}>
            <Badge tone={m.kind === 'problem' ? 'bad' : 'warn'}>{m.line ? `Line ${m.line}` : m.kind}</Badge>
            <span>{m.text}</span>
          </button>
        </li>
      ))}
      {marks.length > 50 && <li class="muted">and {marks.length - 50} more</li>}
    </ul>
  )
}

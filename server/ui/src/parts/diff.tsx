import { hasKeys, parseDiff } from './diff-lines'

// Diff shows a unified diff with the line numbers of both sides.
export function Diff({ text, label = 'What changes' }: { text: string; label?: string }) {
  const lines = parseDiff(text)
  if (!lines.length) return <p class="muted">Nothing changes.</p>
  const added = lines.filter((l) => l.kind === 'add').length
  const removed = lines.filter((l) => l.kind === 'del').length
  return (
    <figure class="diff">
      <figcaption>
        {label}: <span class="text-ok num">+{added}</span> <span class="text-bad num">−{removed}</span>
        {hasKeys(lines) && <small> Keys in overrides and lists are shown whole: careful with pictures of this.</small>}
      </figcaption>
      <div class="diff-scroll" tabIndex={0} role="group" aria-label={label}>
        <table>
          <tbody>
            {lines.map((l, i) =>
              l.kind === 'gap' ? (
                <tr key={i} class="gap">
                  <td colSpan={4}>⋯ {l.text}</td>
                </tr>
              ) : (
                <tr key={i} class={l.kind}>
                  <td class="no">{l.from}</td>
                  <td class="no">{l.to}</td>
                  <td class="sign">{l.kind === 'add' ? '+' : l.kind === 'del' ? '−' : ''}</td>
                  <td class="text">{l.text || ' '}</td>
                </tr>
              ),
            )}
          </tbody>
        </table>
      </div>
    </figure>
  )
}

import type { ComponentChildren } from 'preact'
import { useId } from 'preact/hooks'

// Card is a section of a page with a heading. flush removes the padding, for tables.
export function Card({ title, aside, flush, class: cls = '', children }: { title?: ComponentChildren; aside?: ComponentChildren; flush?: boolean; class?: string; children?: ComponentChildren }) {
  const id = useId()
  return (
    <section class={`card ${flush ? 'flush' : ''} ${cls}`} aria-labelledby={title ? id : undefined}>
      {(title || aside) && (
        <div class="card-head">
          {title && <h2 id={id}>{title}</h2>}
          {aside && <div class="card-aside">{aside}</div>}
        </div>
      )}
      <div class="card-body">{children}</div>
    </section>
  )
}

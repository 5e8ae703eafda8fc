import type { ComponentChildren } from 'preact'

// Empty is shown where there is no data. It says why, and what to do next.
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  )
}

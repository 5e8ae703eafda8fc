import type { ComponentChildren } from 'preact'

// Stat is one number with its name, large.
export function Stat({ label, hint, children }: { label: string; hint?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="stat">
      <dt>{label}</dt>
      <dd>{children}</dd>
      {hint !== undefined && <dd class="stat-hint">{hint}</dd>}
    </div>
  )
}

import type { ComponentChildren } from 'preact'

// Stat shows one number in large type, with its name.
export function Stat({ label, hint, children }: { label: string; hint?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="stat">
      <dt>{label}</dt>
      <dd>{children}</dd>
      {hint !== undefined && <dd class="stat-hint">{hint}</dd>}
    </div>
  )
}

import type { ComponentChildren } from 'preact'

// Code shows text as it is in a file. Long lines scroll inside it.
export function Code({ children, label }: { children: ComponentChildren; label: string }) {
  return (
    <pre class="code" tabIndex={0} role="group" aria-label={label}>
      <code>{children}</code>
    </pre>
  )
}

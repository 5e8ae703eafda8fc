import type { ComponentChildren } from 'preact'
import { useEffect } from 'preact/hooks'

// Page is a view: its title, one sentence about its purpose, its actions, and its content.
export function Page({ title, lead, actions, children }: { title: string; lead?: ComponentChildren; actions?: ComponentChildren; children?: ComponentChildren }) {
  useEffect(() => {
    document.title = `${title} · Weir`
  }, [title])
  return (
    <div class="page">
      <div class="page-head">
        <div>
          <h1>{title}</h1>
          {lead && <p class="muted">{lead}</p>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </div>
      {children}
    </div>
  )
}

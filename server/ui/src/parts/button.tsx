import type { ComponentChildren } from 'preact'
import { toast } from './toast'

export interface ButtonProps {
  onClick?: () => void
  kind?: 'plain' | 'primary' | 'danger'
  quiet?: boolean // no border, for tools beside content
  small?: boolean
  submit?: boolean
  busy?: boolean
  why?: string // why it can't be used now: it keeps the focus, and says so
  label?: string // for a button that has an icon alone
  pressed?: boolean
  autoFocus?: boolean
  children: ComponentChildren
}

export function Button({ onClick, kind = 'plain', quiet, small, submit, busy, why, label, pressed, autoFocus, children }: ButtonProps) {
  return (
    <button
      type={submit ? 'submit' : 'button'}
      class={`button ${kind} ${quiet ? 'quiet' : ''} ${small ? 'small' : ''} ${busy ? 'busy' : ''}`}
      aria-disabled={why || busy ? 'true' : undefined}
      aria-label={label && why ? `${label}. ${why}` : label}
      aria-pressed={pressed}
      aria-busy={busy}
      autofocus={autoFocus}
      title={why || label}
      onClick={(e) => {
        if (why || busy) {
          e.preventDefault()
          if (why) toast({ text: why })
        } else onClick?.()
      }}
    >
      {children}
    </button>
  )
}

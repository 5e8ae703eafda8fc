import type { ComponentChildren } from 'preact'
import { toast } from './toast'

export interface ButtonProps {
  onClick?: () => void
  kind?: 'plain' | 'primary' | 'danger'
  quiet?: boolean // no border, for tools next to content
  small?: boolean
  submit?: boolean
  busy?: boolean
  why?: string // why the button is disabled: it can still have the focus, and shows this text
  label?: string // for a button that has only an icon
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

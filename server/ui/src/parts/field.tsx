import type { ComponentChildren, TargetedEvent } from 'preact'
import { useId } from 'preact/hooks'

interface Common {
  label: string
  hint?: ComponentChildren
  error?: string
  hideLabel?: boolean
}

export interface FieldProps extends Common {
  value: string
  onInput: (value: string) => void
  type?: 'text' | 'password' | 'number' | 'search'
  placeholder?: string
  mono?: boolean
  search?: boolean // the key / moves the focus here
  autoFocus?: boolean
  autocomplete?: string
  list?: string[] // suggestions
  disabled?: boolean
  name?: string
  rows?: number // more than 1 makes it a text area
  width?: 's' | 'm' | 'full'
}

// Field is an input with its label, a hint, and its error. The browser doesn't store what is typed unless autocomplete
// allows it.
export function Field(p: FieldProps) {
  const id = useId()
  const described = p.error ? `${id}-error` : p.hint ? `${id}-hint` : undefined // only one of the two is on the page
  const input = {
    id,
    name: p.name,
    value: p.value,
    placeholder: p.placeholder,
    disabled: p.disabled,
    autofocus: p.autoFocus,
    autocomplete: p.autocomplete ?? 'off',
    spellcheck: false,
    autocapitalize: 'off' as const,
    class: p.mono ? 'mono' : '',
    'aria-invalid': p.error ? ('true' as const) : undefined,
    'aria-describedby': described,
    'data-search': p.search || undefined,
    onInput: (e: TargetedEvent<HTMLInputElement | HTMLTextAreaElement>) => p.onInput(e.currentTarget.value),
    onKeyDown: (e: TargetedEvent<HTMLElement, KeyboardEvent>) => void (e.key === 'Escape' && e.currentTarget.blur()),
  }
  // The types of JSX tie list and role to the type of the input, which doesn't matter here.
  const kind = { type: p.type ?? 'text', list: p.list && `${id}-list` } as { type: 'text'; list: string }
  return (
    <div class={`field ${p.width ?? 'full'}`}>
      <label for={id} class={p.hideLabel ? 'hidden' : ''}>
        {p.label}
      </label>
      {p.rows ? <textarea {...input} rows={p.rows} /> : <input {...input} {...kind} />}
      {p.list && (
        <datalist id={`${id}-list`}>
          {p.list.map((v) => (
            <option key={v} value={v} />
          ))}
        </datalist>
      )}
      {p.error ? (
        <p id={`${id}-error`} class="field-error">
          {p.error}
        </p>
      ) : (
        p.hint && (
          <p id={`${id}-hint`} class="field-hint">
            {p.hint}
          </p>
        )
      )}
    </div>
  )
}

export interface ChoiceProps<T extends string> extends Common {
  value: T
  options: readonly (readonly [T, string])[]
  onChange: (value: T) => void
  disabled?: boolean
}

// Select is a choice from a long list, or where there is little room.
export function Select<T extends string>(p: ChoiceProps<T>) {
  const id = useId()
  return (
    <div class="field">
      <label for={id} class={p.hideLabel ? 'hidden' : ''}>
        {p.label}
      </label>
      <select id={id} value={p.value} disabled={p.disabled} aria-describedby={p.hint ? `${id}-hint` : undefined} onChange={(e) => p.onChange(e.currentTarget.value as T)}>
        {p.options.map(([value, text]) => (
          <option key={value} value={value} selected={value === p.value}>
            {text}
          </option>
        ))}
      </select>
      {p.hint && (
        <p id={`${id}-hint`} class="field-hint">
          {p.hint}
        </p>
      )}
    </div>
  )
}

// Segments is a choice among a few options that are all visible.
export function Segments<T extends string>(p: ChoiceProps<T>) {
  const id = useId()
  return (
    <fieldset class="segments" disabled={p.disabled}>
      <legend class={p.hideLabel ? 'hidden' : ''}>{p.label}</legend>
      <div>
        {p.options.map(([value, text]) => (
          <label key={value}>
            <input type="radio" name={id} value={value} checked={value === p.value} onChange={() => p.onChange(value)} />
            <span>{text}</span>
          </label>
        ))}
      </div>
    </fieldset>
  )
}

// Check is a checkbox.
export function Check({ label, hint, checked, onChange, disabled }: { label: string; hint?: ComponentChildren; checked: boolean; onChange: (checked: boolean) => void; disabled?: boolean }) {
  const id = useId()
  return (
    <div class="check">
      <input id={id} type="checkbox" checked={checked} disabled={disabled} aria-describedby={hint ? `${id}-hint` : undefined} onChange={(e) => onChange(e.currentTarget.checked)} />
      <label for={id}>{label}</label>
      {hint && (
        <p id={`${id}-hint`} class="field-hint">
          {hint}
        </p>
      )}
    </div>
  )
}

import type { ComponentChildren, TargetedMouseEvent } from 'preact'
import { useEffect, useId, useRef } from 'preact/hooks'
import { Button } from './button'
import { Icon } from './icon'
import { Toasts } from './toast'

// If one dialog leads to another, the focus returns to the element that opened the first.
let opener: HTMLElement | null = null

// Dialog is the browser's own, which traps the focus and closes with Esc. When it closes, the focus returns to the
// element that opened it. To keep text from being lost by accident, a click outside does nothing once the user has
// typed, and Esc asks first if the dialog is dirty.
export function Dialog({ open, onClose, title, wide, dirty, footer, children }: { open: boolean; onClose: () => void; title: string; wide?: boolean; dirty?: boolean; footer?: ComponentChildren; children?: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null)
  const typed = useRef(false)
  const shown = useRef(false) // what this component believes: the browser may also close a dialog by itself
  const id = useId()
  useEffect(() => {
    if (!open) return
    const d = ref.current!
    const active = document.activeElement as HTMLElement | null
    if (active !== document.body && !active?.closest('dialog')) opener = active
    const back = [opener, active]
    typed.current = false
    shown.current = true
    d.showModal()
    return () => {
      shown.current = false
      d.close()
      back.forEach((e) => e?.focus({ preventScroll: true })) // the browser does that only for dialogs that are still on the page
    }
  }, [open])

  const beside = (e: TargetedMouseEvent<HTMLDialogElement>) => {
    if (e.target !== ref.current || typed.current || dirty) return
    const box = ref.current!.getBoundingClientRect() // the box, since a click on the dialog's scrollbar is inside
    if (e.clientX < box.left || e.clientX > box.right || e.clientY < box.top || e.clientY > box.bottom) onClose()
  }
  // The browser's close event arrives a frame later. Until then, the button that opens the dialog would do nothing.
  const cancel = (e: Event) => {
    if (e.target !== ref.current) return
    if (dirty && !confirm('Discard what you have typed?')) return e.preventDefault()
    shown.current = false
    onClose()
  }
  return (
    <dialog
      ref={ref}
      class={wide ? 'wide' : ''}
      aria-labelledby={open ? id : undefined}
      onClose={(e) => e.target === ref.current && shown.current && onClose()}
      onCancel={cancel}
      onInput={() => (typed.current = true)}
      onMouseDown={beside}
    >
      {open && (
        <>
          <div class="dialog">
            <div class="dialog-head">
              <h2 id={id}>{title}</h2>
              <Button quiet onClick={onClose} label="Close">
                <Icon name="close" />
              </Button>
            </div>
            <div class="dialog-body">{children}</div>
            {footer && <div class="dialog-foot">{footer}</div>}
          </div>
          <Toasts />
        </>
      )}
    </dialog>
  )
}

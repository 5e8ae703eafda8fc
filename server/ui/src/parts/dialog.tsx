import type { ComponentChildren, TargetedMouseEvent } from 'preact'
import { useEffect, useId, useRef } from 'preact/hooks'
import { Button } from './button'
import { Icon } from './icon'
import { Toasts } from './toast'

// One dialog may lead to another. Then it is what opened the first that gets the focus back.
let opener: HTMLElement | null = null

// Dialog is the browser's own, which holds the focus and closes with Esc. However it ends, the focus goes back to what opened it.
// What was typed isn't dropped by a slip: a click beside it does nothing then, and if it is dirty, Esc asks.
export function Dialog({ open, onClose, title, wide, dirty, footer, children }: { open: boolean; onClose: () => void; title: string; wide?: boolean; dirty?: boolean; footer?: ComponentChildren; children?: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null)
  const typed = useRef(false)
  const shown = useRef(false) // as we know it: the browser closes a dialog by itself, too
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
      back.forEach((e) => e?.focus({ preventScroll: true })) // the browser does that only for a dialog that is still on the page
    }
  }, [open])

  const beside = (e: TargetedMouseEvent<HTMLDialogElement>) => {
    if (e.target !== ref.current || typed.current || dirty) return
    const box = ref.current!.getBoundingClientRect() // a click on its scrollbar is within
    if (e.clientX < box.left || e.clientX > box.right || e.clientY < box.top || e.clientY > box.bottom) onClose()
  }
  // The browser's close event comes a frame later. Until then, a press of the opener would open nothing.
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

import { bindings, useLetters } from './keyboard'
import { Dialog } from './parts/dialog'
import { Check } from './parts/field'

export function Help({ open, onClose }: { open: boolean; onClose: () => void }) {
  const [letters, setLetters] = useLetters()
  return (
    <Dialog open={open} onClose={onClose} title="Keys">
      <Check
        label="Keys of one character"
        hint="Off, only Tab, Enter, Esc and the arrow keys do something: for who speaks to the computer, or hits keys by mistake. This browser keeps the choice."
        checked={letters}
        onChange={setLetters}
      />
      <dl class="keys">
        {open &&
          [...all()]
            .filter(([keys]) => letters || !keys.split(' ').some((k) => k.length === 1))
            .map(([keys, says]) => (
              <div key={keys}>
                <dt>
                  {keys.split(' ').map((k) => (
                    <kbd key={k}>{k}</kbd>
                  ))}
                </dt>
                <dd>{says}</dd>
              </div>
            ))}
      </dl>
    </Dialog>
  )
}

// all lists every key once. If two parts of a page bind the same key, the later one wins.
const all = () =>
  new Map([
    ...bindings().map((b): [string, string] => [b.keys, b.says]),
    ['Tab', 'Next link, button or field; it leaves the YAML editor, too'],
    ['Esc', 'Close a dialog, leave a field or the editor'],
  ])

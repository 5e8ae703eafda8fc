import { useState } from 'preact/hooks'
import { Icon } from './icon'
import { fail } from './toast'

// CliLine shows the command that does the same as the console, ready to copy.
export function CliLine({ children }: { children: string }) {
  const [copied, setCopied] = useState(false)
  return (
    <div class="cli">
      <code tabIndex={0} role="group" aria-label="The command that does the same">
        {children}
      </code>
      <button
        type="button"
        aria-label={copied ? 'Copied' : 'Copy the command'}
        title="Copy"
        onClick={() => {
          copy(children).then(() => {
            setCopied(true)
            setTimeout(() => setCopied(false), 1500)
          }, fail)
        }}
      >
        <Icon name={copied ? 'done' : 'copy'} />
      </button>
    </div>
  )
}

// Browsers give no clipboard to pages that came over plain HTTP from another machine.
export async function copy(text: string) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text)
  const area = document.createElement('textarea')
  area.value = text
  document.body.append(area)
  area.select()
  const done = document.execCommand('copy')
  area.remove()
  if (!done) throw new Error("The browser doesn't let this page copy. Select the text and copy it by hand.")
}

// sh quotes an argument for a shell.
export const sh = (arg: string) => (/^[\w@%+=:,./-]+$/.test(arg) ? arg : `'${arg.replaceAll("'", `'\\''`)}'`)

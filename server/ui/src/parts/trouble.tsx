import type { ComponentChildren } from 'preact'
import { nodeTime } from '../clock'
import { clock, full } from '../format'
import { Icon } from './icon'

// Trouble is the status line at the top of a page. It says what is wrong, since when, and what that means, or that
// nothing is wrong.
export function Trouble({ tone = 'warn', title, since, children }: { tone?: 'ok' | 'warn' | 'bad'; title: string; since?: string; children?: ComponentChildren }) {
  return (
    <div class={`trouble ${tone}`}>
      <Icon name={tone === 'ok' ? 'done' : 'warn'} />
      <div>
        <p>
          <strong>{title}</strong>
          {since && (
            <span class="num">
              {' '}
              since <time dateTime={since}>{nodeTime() - Date.parse(since) < 12 * 3600_000 ? clock(since) : full(since)}</time>
            </span>
          )}
        </p>
        {children}
      </div>
    </div>
  )
}

import type { ComponentChildren } from 'preact'
import { nodeTime } from '../clock'
import { clock, full } from '../format'
import { Icon } from './icon'

// Trouble says at a page's top what is wrong now, since when, and what that means; or, in the same room, that nothing is.
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

import { Meter } from '../parts/meter'
import { Time, useSecond } from '../parts/time'
import type { Counter } from '../wire'
import { countdown, left, leftOf } from './limits'

const algorithms: Record<string, string> = {
  token_bucket: 'token bucket',
  leaky_bucket: 'leaky bucket',
  fixed_window: 'fixed window',
  sliding_window_log: 'sliding log',
  sliding_window_counter: 'sliding counter',
  concurrency: 'requests in flight',
}

// CounterRow shows one counter. Its times count down between two answers of the node.
export function CounterRow({ counter: c, at, named }: { counter: Counter; at: number; named?: boolean }) {
  const now = useSecond()
  const name = algorithms[c.algorithm] ?? c.algorithm
  const stands = leftOf(c)
  const slots = c.in_flight !== undefined // slots become free when their requests end, so there is no reset time
  return (
    <div class="counter">
      <div class="counter-name">
        <span class="num">
          {named && <b class="mono">{c.policy}</b>} {c.limit}
        </span>
        <small>
          {name}
          {!named && c.policy !== c.rule && <span class="mono"> {c.policy}</span>}
          {c.runs_out_at && (
            <span class="text-warn">
              {' '}
              runs out <Time at={c.runs_out_at} />
            </span>
          )}
        </small>
      </div>
      {c.degraded ? (
        <p class="counter-unknown text-warn">Unknown: the store can't be reached.</p>
      ) : c.shared_address ? (
        <p class="counter-unknown muted">Whose address it is isn't known: give the IP address above.</p>
      ) : (
        <>
          <Meter share={c.used ?? 0} label={`${c.policy}: used`} />
          <div class="counter-left num">
            <b class={c.remaining === 0 ? 'text-bad' : ''}>{stands.n}</b> <small>{stands.of}</small>
          </div>
          <div class="counter-when num">
            <small>next</small> <span class={c.refuses ? 'text-bad' : ''}>{slots && c.retry_after_ms > 0 ? 'when one ends' : countdown(left(c.retry_after_ms, at, now))}</span>
          </div>
          <div class="counter-when num">
            <small>full</small> {slots && c.in_flight ? 'when all end' : countdown(left(c.reset_after_ms, at, now))}
          </div>
        </>
      )}
    </div>
  )
}

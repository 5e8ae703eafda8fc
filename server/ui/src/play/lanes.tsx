// The lanes on a common time axis, and the table of results.
import { useEffect, useRef } from 'preact/hooks'
import { useTheme } from '../theme'
import { drawAxis, drawLane, palette, type Palette } from './draw'
import { names, titleOf } from './names'
import type { Lane, Player } from './player'
import { moment } from './time'

// useCanvas redraws when the player has new data, and when the theme or the size changes.
function useCanvas(player: Player, draw: (c: HTMLCanvasElement, p: Palette) => void, deps: unknown[]) {
  const ref = useRef<HTMLCanvasElement>(null)
  const { dark } = useTheme()
  useEffect(() => {
    const colors = palette()
    const again = () => ref.current && draw(ref.current, colors)
    const off = player.onDraw(again)
    const room = new ResizeObserver(again)
    room.observe(ref.current!)
    return () => {
      off()
      room.disconnect()
    }
  }, [dark, ...deps])
  return ref
}

export function Lanes({ player, own }: { player: Player; own: boolean }) {
  return (
    <div class="lanes">
      <Axis player={player} />
      {own && <LaneRow key="all" player={player} lane={player.whole} title="All rules together" says="The request is admitted when every limit below has room." plain />}
      {player.lanes.map((lane) => (
        <LaneRow
          key={lane.info.id}
          player={player}
          lane={lane}
          title={own ? lane.info.rule : titleOf(lane.info.algorithm)}
          says={own ? `${lane.info.limit}, ${titleOf(lane.info.algorithm).toLowerCase()}${lane.info.shadow ? ', in shadow' : ''}` : names[lane.info.algorithm]!.says}
          lit={player.demo?.lane === lane.info.id}
        />
      ))}
      <Legend own={own} />
    </div>
  )
}

function Axis({ player }: { player: Player }) {
  const ref = useCanvas(player, (c, p) => drawAxis(c, player.view(), player.arrivals, player.coming, p), [])
  return (
    <div class="lane axis">
      <div class="lane-head">
        <strong>Requests</strong>
        <span class="num muted">at {moment(Math.floor(player.now / 1e4) / 100)}</span>
      </div>
      <div class="strip">
        <canvas ref={ref} aria-hidden="true" />
      </div>
    </div>
  )
}

function LaneRow({ player, lane, title, says, lit, plain }: { player: Player; lane: Lane; title: string; says: string; lit?: boolean; plain?: boolean }) {
  const ref = useCanvas(player, (c, p) => drawLane(c, player.view(), lane, player.arrivals, p, plain), [lane])
  const { counts } = lane
  return (
    <div class={`lane ${lit ? 'lit' : ''} ${plain ? 'plain' : ''} ${lane.info.algorithm}`}>
      <div class="lane-head">
        <h2>{title}</h2>
        <p class="lane-counts num" aria-hidden="true">
          <span class="text-ok">
            <Shape kind="admitted" /> {counts.admitted}
          </span>
          <span class="text-bad">
            <Shape kind="refused" /> {counts.refused}
          </span>
        </p>
        <p class="lane-text num">{lane.text || (plain ? 'no request yet' : '')}</p>
        <p class="lane-says">{says}</p>
      </div>
      <div class="strip">
        <canvas ref={ref} aria-hidden="true" />
      </div>
    </div>
  )
}

const shapes = {
  admitted: <circle cx="6" cy="6" r="4" fill="currentColor" />,
  refused: <path d="M2.5 2.5l7 7M9.5 2.5l-7 7" stroke="currentColor" stroke-width="2" />,
  delayed: <path d="M6 1l5 5-5 5-5-5z" fill="currentColor" />,
  left: <circle cx="6" cy="6" r="3.5" fill="none" stroke="currentColor" stroke-width="1.5" />,
}

function Shape({ kind }: { kind: keyof typeof shapes }) {
  return (
    <svg class="shape" viewBox="0 0 12 12" aria-hidden="true">
      {shapes[kind]}
    </svg>
  )
}

function Legend({ own }: { own: boolean }) {
  return (
    <ul class="legend">
      <li class="text-ok">
        <Shape kind="admitted" /> <span>admitted, or leaving the queue</span>
      </li>
      <li class="text-bad">
        <Shape kind="refused" /> <span>refused</span>
      </li>
      <li class="text-warn">
        <Shape kind="delayed" /> <span>admitted, and waits</span>
      </li>
      {own ? (
        <li class="muted">
          <Shape kind="left" /> <span>has room, another limit refused</span>
        </li>
      ) : (
        <li class="text-ok">
          <Shape kind="left" /> <span>still waiting</span>
        </li>
      )}
      <li>
        <i class="patch level" /> <span>level or count</span>
      </li>
      <li>
        <i class="patch base" /> <span>the window before, weighted</span>
      </li>
      <li>
        <i class="patch within" /> <span>time that counts now</span>
      </li>
      <li>
        <i class="patch edge" /> <span>a window's edge</span>
      </li>
    </ul>
  )
}

// summary describes the lanes in one sentence.
export function summary(player: Player, own: boolean): string {
  const sent = player.arrivals.length
  if (!sent) return ''
  const of = (l: Lane, name: string) => `${name} admitted ${l.counts.admitted}, refused ${l.counts.refused}`
  const lanes = own ? [of(player.whole, 'all rules together'), player.whole.text] : player.lanes.map((l) => of(l, titleOf(l.info.algorithm)))
  return `${player.full ? `${player.full}. ` : ''}At ${moment(Math.floor(player.now / 1e4) / 100)}, of ${sent} sent: ${lanes.join('; ')}.`
}

// Results is a table of what the lanes show, for users of screen readers and for everyone who wants the numbers.
export function Results({ player, own }: { player: Player; own: boolean }) {
  const window = player.lanes[0]?.info.window ?? 0
  const same = player.lanes.every((l) => l.info.window === window)
  const rows = own ? [player.whole, ...player.lanes] : player.lanes
  return (
    <div class="results" tabIndex={0} role="group" aria-label="Counts">
      <table aria-label="What became of the requests">
        <thead>
          <tr>
            <th scope="col">{own ? 'Limit' : 'Algorithm'}</th>
            <th scope="col">Sent</th>
            <th scope="col">Admitted</th>
            <th scope="col">Refused</th>
            <th scope="col">Delayed</th>
            <th scope="col">{same && window ? `Most in ${moment(window / 1e6)}` : 'Most in a window'}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((l) => (
            <tr key={l.info.id}>
              <th scope="row">{l === player.whole ? 'All rules together' : own ? `${l.info.rule} ${l.info.limit}` : titleOf(l.info.algorithm)}</th>
              <td>{l.counts.sent}</td>
              <td>{l.counts.admitted}</td>
              <td>{l.counts.refused}</td>
              <td>{l.counts.delayed}</td>
              <td>{l === player.whole ? '–' : l.counts.peak}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

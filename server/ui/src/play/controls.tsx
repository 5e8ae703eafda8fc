// The controls: for the clock, for sending requests, and for the numbers.
import { useEffect, useState } from 'preact/hooks'
import { Button } from '../parts/button'
import { Field, Select } from '../parts/field'
import { Icon } from '../parts/icon'
import type { Demo, Numbers } from './engine'
import { speeds, type Player } from './player'
import { moment } from './time'

export function Demos({ list, current, show }: { list: Demo[]; current: string | undefined; show: (id: string) => void }) {
  return (
    <div class="demos" role="group" aria-label="Demonstrations">
      {list.map((d, i) => {
        const [of, what] = d.title.split(': ')
        return (
          <button key={d.id} type="button" class="demo" aria-pressed={d.id === current} onClick={() => show(d.id)}>
            <span class="demo-of">{of}:</span> <strong>{what}</strong>
            <kbd aria-hidden="true">{i + 1}</kbd>
          </button>
        )
      })}
    </div>
  )
}

export interface StageProps {
  player: Player
  burst: number // how many requests the key b sends
  act: (f: () => void) => void // runs f, and shows its error
  why: string // why no requests can be sent, or ''
  clear: () => void
}

// Bar is above the lanes. Its buttons send requests and control the clock.
export function Bar({ player, burst, act, why, clear }: StageProps) {
  return (
    <div class="bar">
      <div class="row tight">
        <Button kind="primary" why={why} onClick={() => act(() => player.send(1, 0))}>
          Send one <kbd>space</kbd>
        </Button>
        <Button why={why} onClick={() => act(() => player.send(burst, 0))}>
          Burst of {burst} <kbd>b</kbd>
        </Button>
        <Button quiet onClick={clear}>
          Reset <kbd>r</kbd>
        </Button>
      </div>
      <div class="transport">
        <div class="row tight">
          <Button quiet label="Back to the beginning (0)" onClick={() => player.seek(0)}>
            <Icon name="first" />
          </Button>
          <Button quiet label="Back to the request before (,)" onClick={() => player.step('back')}>
            <Icon name="back" />
          </Button>
          <Button label={player.playing ? 'Pause (p)' : 'Play (p)'} onClick={() => player.toggle()}>
            <Icon name={player.playing ? 'pause' : 'play'} />
          </Button>
          <Button quiet label="On to the next request (.)" onClick={() => player.step('step')}>
            <Icon name="step" />
          </Button>
        </div>
        <label class="scrub">
          <span class="hidden">Time</span>
          <input
            type="range"
            min={0}
            max={Math.max(1, Math.ceil(player.reach / 1000))}
            value={Math.round(player.now / 1000)}
            aria-valuetext={moment(Math.round(player.now / 1e4) / 100)}
            onInput={(e) => player.seek(Number(e.currentTarget.value) * 1000)}
          />
        </label>
        <Select
          label="Speed"
          hideLabel
          value={String(player.speed)}
          options={[...new Set([...speeds, player.speed])].sort((a, b) => a - b).map((s) => [String(s), `${+s.toFixed(2)}×`] as const)}
          onChange={(s) => player.setSpeed(Number(s))}
        />
      </div>
    </div>
  )
}

export const patterns = [
  ['steady', 'steadily'],
  ['poisson', 'at random (Poisson)'],
  ['onoff', 'on and off'],
  ['boundary', 'around window edges'],
] as const

export type Pattern = (typeof patterns)[number][0]

export interface PatternProps {
  player: Player
  pattern: Pattern
  rate: string
  setPattern: (p: Pattern) => void
  setRate: (r: string) => void
  act: (f: () => void) => void
  why: string
}

export function Patterns({ player, pattern, rate, setPattern, setRate, act, why }: PatternProps) {
  return (
    <div class="stack small">
      <div class="pattern">
        <Select label="Requests come" value={pattern} options={patterns} onChange={setPattern} />
        {pattern !== 'boundary' && <Field label="How many a second" value={rate} onInput={setRate} />}
      </div>
      <div class="row">
        {player.pattern ? (
          <Button onClick={() => player.stop()}>
            Stop <kbd>s</kbd>
          </Button>
        ) : (
          <Button why={why} onClick={() => act(() => player.start(pattern, Number(rate)))}>
            Start <kbd>s</kbd>
          </Button>
        )}
      </div>
      {player.full && <p class="text-warn">{player.full}</p>}
    </div>
  )
}

const fields: { name: keyof Numbers; label: string; unit: number; }[] = [
  { name: 'limit', label: 'Limit, requests', unit: 1 },
  { name: 'window', label: 'Window, seconds', unit: 1000 },
  { name: 'burst', label: 'Burst of buckets', unit: 1 },
  { name: 'max_delay', label: 'Longest wait, seconds', unit: 1000 },
]

// NumberFields edits the numbers of all algorithms. It shows errors next to the fields, and doesn't apply invalid
// numbers.
export function NumberFields({ numbers, apply }: { numbers: Numbers; apply: (n: Numbers) => string }) {
  // Without a maximum delay, its field is empty.
  const shown = (n: Numbers) => Object.fromEntries(fields.map((f) => [f.name, f.name === 'max_delay' && !n.max_delay ? '' : String((f.name === 'burst' ? n.burst || n.limit : n[f.name]) / f.unit)]))
  const [typed, setTyped] = useState(() => shown(numbers))
  const [error, setError] = useState('')
  useEffect(() => setTyped(shown(numbers)), [numbers])
  const change = (name: keyof Numbers, text: string) => {
    const now = { ...typed, [name]: text }
    // If the burst was equal to the limit, it follows the limit.
    if (name === 'limit' && typed.burst === typed.limit) now.burst = text
    setTyped(now)
    if (fields.some((f) => !/^\d+(\.\d+)?$/.test(now[f.name]!.trim() || (f.name === 'max_delay' ? '0' : '')))) return setError('Numbers, please.')
    const of = (n: keyof Numbers, unit: number) => Math.round(Number(now[n]) * unit)
    setError(apply({ limit: of('limit', 1), window: of('window', 1000), burst: of('burst', 1), max_delay: of('max_delay', 1000) }))
  }
  return (
    <div class="numbers">
      {fields.map((f) => (
        <Field key={f.name} label={f.label} placeholder={f.name === 'max_delay' ? 'any' : undefined} value={typed[f.name]!} onInput={(v) => change(f.name, v)} error={error.startsWith(f.name.replace('_', ' ')) ? error : ''} />
      ))}
      {error && !fields.some((f) => error.startsWith(f.name.replace('_', ' '))) && <p class="field-error">{error}</p>}
    </div>
  )
}
